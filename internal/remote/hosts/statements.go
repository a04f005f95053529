package hosts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/sandboxes"
)

// statements is the folder of the statements about sandboxes, which has a folder for each server.
const statements = "statements"

// maxStatements bounds the statements about the sandboxes of one server.
const maxStatements = 256

// A shelf keeps the newest statement about each sandbox of the server at an address, in a file of the
// user. What is wrong with a file costs a round trip, so no error of it is told.
type shelf struct {
	store   Store
	address remote.Address
}

func (s shelf) folder() string {
	return s.store.Dir.Path(folder, statements, addressName(s.address))
}

// path returns the file of a sandbox. Other names than those of sandboxes have none.
func (s shelf) path(id turnstone.SandboxID) (string, bool) {
	ok := sandboxes.IsID(string(id))
	return filepath.Join(s.folder(), string(id)), ok
}

// Statement implements remote.StatementBook.
func (s shelf) Statement(id turnstone.SandboxID) (k remote.KeptStatement, has bool) {
	path, ok := s.path(id)
	if !ok {
		return k, false
	}
	text, err := readOwn(path)
	return k, err == nil && json.Unmarshal([]byte(text), &k) == nil
}

// Keep implements remote.StatementBook. The file need not outlive a crash of this machine, so
// nothing waits for the disk.
func (s shelf) Keep(id turnstone.SandboxID, k remote.KeptStatement) {
	path, ok := s.path(id)
	text, err := json.Marshal(k)
	if !ok || err != nil {
		return
	}
	if err := os.MkdirAll(s.folder(), 0o700); err != nil {
		return
	}
	s.prune(time.Now())
	f, err := os.CreateTemp(s.folder(), ".new-") // of mode 0600
	if err != nil {
		return
	}
	_, err = f.Write(text)
	if f.Close() == nil && err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}

// Drop implements remote.StatementBook.
func (s shelf) Drop(id turnstone.SandboxID) {
	if path, ok := s.path(id); ok {
		_ = os.Remove(path)
	}
}

// prune removes files whose statements have expired, and the oldest of too many.
func (s shelf) prune(now time.Time) {
	type file struct {
		name string
		at   time.Time
	}
	entries, err := os.ReadDir(s.folder())
	if err != nil {
		return
	}
	var all []file
	for _, e := range entries {
		if i, err := e.Info(); err == nil {
			all = append(all, file{e.Name(), i.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b file) int { return b.at.Compare(a.at) }) // the newest first
	for n, f := range all {
		if n >= maxStatements-1 || now.Sub(f.at) > attest.MaxValidity {
			_ = os.Remove(filepath.Join(s.folder(), f.name))
		}
	}
}
