package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/suggest"
)

// HomeInfo is a persistent home directory.
type HomeInfo struct {
	Name  string           `json:"name"`
	Bytes int64            `json:"bytes"` // that it takes up on disk
	Used  time.Time        `json:"used"`  // when it was written to last
	InUse bool             `json:"in_use"`
	Turn  turnstone.TurnID `json:"turn,omitempty"` // that has it, or had it last
}

const homeSuffix = ".ext4"

// Homes lists the persistent home directories, by name.
func (x *Repo) Homes(ctx context.Context) ([]HomeInfo, error) {
	all := []HomeInfo{}
	entries, err := os.ReadDir(x.home.Path("homes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.NewError("executor.home", turnstone.KindUnavailable, x.home.Path("homes"),
			err).WithHint("check its permissions")
	}
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), homeSuffix)
		if !is || !e.Type().IsRegular() || ctx.Err() != nil {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			continue // it was removed meanwhile
		}
		path := x.home.Path("homes", e.Name())
		h := HomeInfo{Name: name, Bytes: allocated(fi), Used: fi.ModTime().UTC(), Turn: homeTurn(path)}
		if _, err := os.Stat(path + ".lock"); err == nil {
			lock, err := statedir.TryAcquire(path + ".lock")
			h.InUse = err == nil && lock == nil
			lock.Release()
		}
		all = append(all, h)
	}
	return all, ctx.Err()
}

// HasHome returns an error when there is no persistent home directory called name.
func (x *Repo) HasHome(ctx context.Context, name string) error {
	if err := turnstone.CheckName("home", name); err != nil {
		return err
	}
	if _, err := os.Lstat(x.home.Path("homes", name+homeSuffix)); err != nil {
		return x.noHome(ctx, name)
	}
	return nil
}

// RemoveHome deletes a persistent home directory with all that is in it. One that a turn
// uses is refused: kind Unavailable.
func (x *Repo) RemoveHome(ctx context.Context, name string) error {
	fail := func(kind turnstone.Kind, err error, hint string) error {
		return turnstone.NewError("executor.home", kind, "home "+name, err).WithHint(hint)
	}
	if err := x.HasHome(ctx, name); err != nil {
		return err
	}
	path := x.home.Path("homes", name+homeSuffix)
	lock, err := statedir.TryAcquire(path + ".lock")
	if err != nil {
		return fail(turnstone.KindUnavailable, err, "check the permissions of the state directory")
	}
	if lock == nil {
		return fail(turnstone.KindUnavailable, fmt.Errorf("%s uses it", homeUser(path)), "wait for the turn, or end it")
	}
	defer lock.Release()
	// The disk goes first: what is left is of no home, and the next one's.
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return x.noHome(ctx, name)
		}
		return fail(turnstone.KindUnavailable, err, "check the permissions of the state directory")
	}
	for _, suffix := range []string{".new", ".user", ".lock"} {
		_ = os.Remove(path + suffix)
	}
	return filestamp.SyncDir(filepath.Dir(path))
}

// noHome says that there is no such home, and which one may have been meant.
func (x *Repo) noHome(ctx context.Context, name string) error {
	all, err := x.Homes(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, h := range all {
		names = append(names, h.Name)
	}
	hint := "turn home ls lists the homes"
	if nearest, edits := suggest.Nearest(name, names); nearest != "" && edits <= 1+len(name)/4 {
		hint = "did you mean " + nearest + "? " + hint
	}
	return turnstone.Errorf("executor.home", turnstone.KindNotFound, "home "+name,
		"there is no such home").WithHint(hint)
}
