package store

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
)

// Objects found damaged or missing count as absent when they are put again: the store heals through
// normal writes. Fsck keeps their digests in a file, one per line; damaged objects found by a
// reader are remembered in memory.
const badFile = "damaged"

// isBad reports whether i was found damaged.
func (s *Store) isBad(i id) bool {
	s.mu.RLock()
	bad, read := s.bad[i], s.badRead
	s.mu.RUnlock()
	if read {
		return bad
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readBad()
	return s.bad[i]
}

// readBad reads the file, with the lock held. An unreadable file counts as missing: damaged objects
// then heal only after the next Fsck.
func (s *Store) readBad() {
	if s.badRead {
		return
	}
	s.badRead = true
	if s.bad == nil {
		s.bad = map[id]bool{}
	}
	f, err := os.Open(filepath.Join(s.dir, badFile))
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if i, err := parseID("", turnstone.Digest(lines.Text())); err == nil {
			s.bad[i] = true
		}
	}
}

func (s *Store) markBad(i id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readBad()
	s.bad[i] = true
}

// badObjects returns a copy of the list of damaged objects.
func (s *Store) badObjects() map[id]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readBad()
	return maps.Clone(s.bad)
}

// setBad replaces the list of damaged objects.
func (s *Store) setBad(all map[id]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad, s.badRead = all, true
	path := filepath.Join(s.dir, badFile)
	if len(all) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var text bytes.Buffer
	for _, i := range slices.SortedFunc(maps.Keys(all), func(a, b id) int {
		return bytes.Compare(a[:], b[:])
	}) {
		text.WriteString(string(i.digest()) + "\n")
	}
	if err := s.index.fault("damaged-write"); err != nil {
		return err
	}
	// Not durable: the next Fsck can restore the file.
	if err := os.WriteFile(path+".tmp", text.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
