// Package host provides drivers with facts about the host: its CPU, and the versions of the
// programs that they start.
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

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/subprocess"
)

// A Program contains cached facts about a program: its digest costs a read of the file, and its
// version costs a start, which takes as long as a tenth of a turn.
type Program struct {
	Path    string          `json:"path"`
	Binary  filestamp.Stamp `json:"binary"`
	Version string          `json:"version"`
}

// recall returns the facts on the program at path from the file called name in h's cache, if the
// program is unchanged.
func recall(h *statedir.Dir, name, path string) (p Program, ok bool) {
	b, err := os.ReadFile(h.Path("cache", name))
	ok = err == nil && json.Unmarshal(b, &p) == nil && p.Path == path && p.Binary.Fresh(path)
	return p, ok
}

// ask determines the facts on the program at path; version starts it.
func ask(ctx context.Context, path string, version func(context.Context) (string, error)) (
	p Program, err error) {
	p.Path = path
	// before the start: a program that is replaced meanwhile is asked again
	if p.Binary, err = filestamp.Of(ctx, path); err == nil {
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

// Versioned returns the facts on the program at path from the file called name in h's cache;
// otherwise it asks the program for its version, the first line of its output.
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

// versionLimit bounds the time of a version command, also on a busy host.
const versionLimit = 30 * time.Second

// Kernel returns the release of the host's kernel.
func Kernel() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail on a valid pointer
	return unix.ByteSliceToString(u.Release[:])
}

// FindSystem returns the path of a system program. It also searches folders that are not in
// ordinary users' PATH.
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
