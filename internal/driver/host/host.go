// Package host says what drivers of substrates have to know of the host: its CPU, and
// the versions of the programs that they start.
package host

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Program is what is remembered of a program: its digest costs reading it, and its
// version a start of it, which takes as long as a tenth of a turn.
type Program struct {
	Path    string          `json:"path"`
	Binary  filestamp.Stamp `json:"binary"`
	Version string          `json:"version"`
}

// Known returns what the file called name in h's cache says of the program at path, if
// the program is still the one of then.
func Known(h *statedir.Dir, name, path string) (p Program, ok bool) {
	b, err := os.ReadFile(h.Path("cache", name))
	ok = err == nil && json.Unmarshal(b, &p) == nil && p.Path == path && p.Binary.Fresh(path)
	return p, ok
}

// Ask finds out anew what is to be known of the program at path; version starts it.
func Ask(ctx context.Context, path string, version func(context.Context) (string, error)) (p Program, err error) {
	p.Path = path
	if p.Binary, err = filestamp.Of(ctx, path); err == nil { // before it is started: should it be replaced now, it is asked again
		p.Version, err = version(ctx)
	}
	return p, err
}

// Remember writes p to the file called name in h's cache.
func (p Program) Remember(h *statedir.Dir, name string) error {
	if _, err := h.MkdirAll("cache"); err != nil {
		return err
	}
	b, _ := json.Marshal(p) // plain data always encodes
	return filestamp.WriteFile(h.Path("cache", name), b, 0o600)
}

// FindSystem returns the path of one of the system's programs. It also looks where
// ordinary users' PATH does not.
func FindSystem(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}
