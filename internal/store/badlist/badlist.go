// Package badlist has the objects of a store that were found damaged: a file, and what this process
// has found.
package badlist

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

const prefix = "sha256:"

// A List is the list in the file Path, one digest per line. It is safe for concurrent use.
type List struct {
	Path  string
	Fault func(op string) error // called before the file is written

	mu   sync.RWMutex
	bad  map[[32]byte]bool
	read bool
}

// Has reports whether i is on the list.
func (l *List) Has(i [32]byte) bool {
	l.mu.RLock()
	bad, read := l.bad[i], l.read
	l.mu.RUnlock()
	if read {
		return bad
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	return l.bad[i]
}

// load reads the file, with the lock held. An unreadable file counts as missing: damaged objects then
// heal only after the next check of the store.
func (l *List) load() {
	if l.read {
		return
	}
	l.read = true
	if l.bad == nil {
		l.bad = map[[32]byte]bool{}
	}
	f, err := os.Open(l.Path)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		digits, ok := strings.CutPrefix(lines.Text(), prefix)
		b, err := hex.DecodeString(digits)
		if ok && err == nil && len(b) == 32 {
			l.bad[[32]byte(b)] = true
		}
	}
}

// Mark adds i in this process.
func (l *List) Mark(i [32]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	l.bad[i] = true
}

// All returns a copy of the list.
func (l *List) All() map[[32]byte]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	return maps.Clone(l.bad)
}

// Set replaces the list, and the file. The file is not durable: the next check can restore it.
func (l *List) Set(all map[[32]byte]bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad, l.read = all, true
	if len(all) == 0 {
		if err := os.Remove(l.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var text bytes.Buffer
	byBytes := func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) }
	for _, i := range slices.SortedFunc(maps.Keys(all), byBytes) {
		text.WriteString(prefix + hex.EncodeToString(i[:]) + "\n")
	}
	if err := l.Fault("damaged-write"); err != nil {
		return err
	}
	if err := os.WriteFile(l.Path+".tmp", text.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(l.Path+".tmp", l.Path)
}
