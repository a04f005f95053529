// Package userhome keeps persistent home directories: disks that outlive the sandboxes in which
// they are mounted, one sandbox at a time.
package userhome

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/suggest"
)

const op turnstone.Op = "executor.home"

// diskSize is the largest size of a home. Its file occupies only the size of its contents.
const diskSize turnstone.Bytes = 32 << 30

// Homes are the home directories of one state directory. Its methods are safe for concurrent use,
// also by several processes.
type Homes struct{ dir *statedir.Dir }

// In returns the homes in a state directory.
func In(dir *statedir.Dir) *Homes { return &Homes{dir} }

// A home's file has this suffix. Its lock and the ID of its user's turn are beside it.
const suffix = ".ext4"

func (h *Homes) path(name string) string { return h.dir.Path("homes", name+suffix) }

// List returns the homes by name.
func (h *Homes) List(ctx context.Context) ([]turnstone.HomeInfo, error) {
	all := []turnstone.HomeInfo{}
	entries, err := os.ReadDir(h.dir.Path("homes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, h.dir.Path("homes"), err).
			WithHint("check its permissions")
	}
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), suffix)
		if !is || !e.Type().IsRegular() || ctx.Err() != nil {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		path := h.path(name)
		info := turnstone.HomeInfo{Name: name, Bytes: statedir.Allocated(fi),
			Used: fi.ModTime().UTC(),
			Turn: turnOf(path)}
		if _, err := os.Stat(path + ".lock"); err == nil {
			lock, err := statedir.TryAcquire(path + ".lock")
			info.InUse = err == nil && lock == nil
			lock.Release()
		}
		all = append(all, info)
	}
	return all, ctx.Err()
}

// Has returns an error if there is no home with this name.
func (h *Homes) Has(ctx context.Context, name string) error {
	if err := turnstone.CheckName("home", name); err != nil {
		return err
	}
	if _, err := os.Lstat(h.path(name)); err != nil {
		return h.notFound(ctx, name)
	}
	return nil
}

// Remove deletes a home with its contents. A home that is in use is an error of kind Unavailable.
func (h *Homes) Remove(ctx context.Context, name string) error {
	fail := func(err error, hint string) error {
		return turnstone.NewError(op, turnstone.KindUnavailable, "home "+name, err).WithHint(hint)
	}
	if err := h.Has(ctx, name); err != nil {
		return err
	}
	path := h.path(name)
	lock, err := statedir.TryAcquire(path + ".lock")
	if err != nil {
		return fail(err, "check the permissions of the state directory")
	}
	if lock == nil {
		return fail(fmt.Errorf("%s uses it", userOf(path)), "wait for the turn, or end it")
	}
	defer lock.Release()
	// The disk is removed first: the files beside it then belong to no home, and serve the next
	// home of this name.
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return h.notFound(ctx, name)
		}
		return fail(err, "check the permissions of the state directory")
	}
	for _, suffix := range []string{".new", ".user", ".lock"} {
		_ = os.Remove(path + suffix)
	}
	return filestamp.SyncDir(filepath.Dir(path))
}

// notFound returns the error for a missing home. Its hint names the nearest home.
func (h *Homes) notFound(ctx context.Context, name string) error {
	all, err := h.List(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, info := range all {
		names = append(names, info.Name)
	}
	hint := "turn home ls lists the homes"
	if nearest, edits := suggest.Nearest(name, names); nearest != "" && edits <= 1+len(name)/4 {
		hint = "did you mean " + nearest + "? " + hint
	}
	return turnstone.Errorf(op, turnstone.KindNotFound, "home "+name, "there is no such home").
		WithHint(hint)
}

// A Request is one turn's use of a home.
type Request struct {
	Name    string
	Turn    turnstone.TurnID
	Timeout time.Duration // the turn's limit, which also bounds waiting for another user
}

// Acquire returns the disk of a home, which it creates if there is none, and holds the home until
// release is called: only one sandbox at a time may write to it. progress receives the name of the
// user that Acquire waits for.
func (h *Homes) Acquire(ctx context.Context, req Request, progress func(string)) (
	path string, release func(), err error) {
	if _, err := h.dir.MkdirAll("homes"); err != nil {
		return "", nil, err
	}
	path = h.path(req.Name)
	lock, err := req.lock(ctx, path, progress)
	if err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		fresh := path + ".new"
		_ = os.Remove(fresh) // left by a killed process
		if err = disk.MakeHome(ctx, fresh, diskSize); err == nil {
			err = os.Rename(fresh, path)
		}
		if err != nil {
			lock.Release()
			return "", nil, err
		}
	}
	return path, lock.Release, nil
}

// lock takes the lock of the home at path, and records the turn beside it.
func (r Request) lock(ctx context.Context, path string, progress func(string)) (
	*statedir.Lock, error) {
	within, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	lock, err := statedir.Acquire(within, path+".lock", func() {
		progress("waiting for home " + r.Name + ", which " + userOf(path) + " uses")
	})
	if err != nil && ctx.Err() == nil && errors.Is(within.Err(), context.DeadlineExceeded) {
		return nil, turnstone.Errorf(op, turnstone.KindTimeout, "home "+r.Name,
			"%s used it all of the turn's %s", userOf(path), r.Timeout).
			WithHint("wait for it, give this turn a longer timeout, or another home")
	}
	if err != nil {
		return nil, err
	}
	if err := filestamp.WriteFile(path+".user", []byte(r.Turn), 0o600); err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}

// userOf names the user of the home at path.
func userOf(path string) string {
	if id := turnOf(path); id != "" {
		return "turn " + string(id)
	}
	return "another turn"
}

// turnOf returns the current or last turn of the home at path; empty if unknown.
func turnOf(path string) turnstone.TurnID {
	f, err := os.Open(path + ".user")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if b, err := io.ReadAll(io.LimitReader(f, 64)); err == nil && turnID.Match(b) {
		return turnstone.TurnID(b)
	}
	return ""
}

// turnID matches the note that lock writes.
var turnID = lazyregexp.New(`^[a-z]+_[0-9a-z]+$`)
