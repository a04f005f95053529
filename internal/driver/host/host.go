// Package host says what drivers of substrates have to know of the host: its CPU, and
// the versions of the programs that they start.
package host

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/subprocess"
)

// A Program is what is remembered of a program: its digest costs reading it, and its
// version a start of it, which takes as long as a tenth of a turn.
type Program struct {
	Path    string          `json:"path"`
	Binary  filestamp.Stamp `json:"binary"`
	Version string          `json:"version"`
}

// recall returns what the file called name in h's cache says of the program at path, if
// the program is still the one of then.
func recall(h *statedir.Dir, name, path string) (p Program, ok bool) {
	b, err := os.ReadFile(h.Path("cache", name))
	ok = err == nil && json.Unmarshal(b, &p) == nil && p.Path == path && p.Binary.Fresh(path)
	return p, ok
}

// ask finds out anew what is to be known of the program at path; version starts it.
func ask(ctx context.Context, path string, version func(context.Context) (string, error)) (p Program, err error) {
	p.Path = path
	if p.Binary, err = filestamp.Of(ctx, path); err == nil { // before it is started: should it be replaced now, it is asked again
		p.Version, err = version(ctx)
	}
	return p, err
}

// remember writes p to the file called name in h's cache.
func (p Program) remember(h *statedir.Dir, name string) error {
	if _, err := h.MkdirAll("cache"); err != nil {
		return err
	}
	b, _ := json.Marshal(p) // plain data always encodes
	return filestamp.WriteFile(h.Path("cache", name), b, 0o600)
}

// Versioned returns what is remembered of the program at path in the file called name in h's cache;
// where nothing is, it asks the program for its version, the first line of what it says.
func Versioned(ctx context.Context, h *statedir.Dir, name, path string) (Program, error) {
	if known, ok := recall(h, name, path); ok {
		return known, nil
	}
	p, err := ask(ctx, path, func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, versionLimit)
		defer cancel()
		out := console.Tail{Limit: 4 << 10}
		cmd := exec.Command(path, "--version")
		cmd.Stdout, cmd.WaitDelay = &out, time.Second
		if err := subprocess.Run(ctx, cmd, subprocess.Options{}); err != nil {
			return "", fmt.Errorf("--version: %w", err)
		}
		line, _, _ := strings.Cut(out.String(), "\n")
		return console.Printable(strings.TrimSpace(line)), nil
	})
	if err != nil {
		return p, err
	}
	return p, p.remember(h, name)
}

// versionLimit is how long a program may take to say its version, on a busy host too.
const versionLimit = 30 * time.Second

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
