// Package homes keeps persistent home directories: named trees of the context store that belong to
// no session, used by one turn at a time.
package homes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/suggest"
)

const op turnstone.Op = "executor.home"

// Homes are the home directories of one state directory. A context's operations see the homes of
// its owner: see session.Owner. The methods are safe for concurrent use, also by several processes.
type Homes struct{ repo *repo.Repo }

// In returns the homes in r.
func In(r *repo.Repo) *Homes { return &Homes{r} }

// Files of a home in the folder homes of the state directory.
const (
	lockSuffix = ".lock" // held by the turn that uses it
	userSuffix = ".user" // the ID of that turn
	diskSuffix = ".ext4" // a disk, from before homes were trees
)

// path returns the path of a home's files, without their suffixes. Each owner has a folder.
func (h *Homes) path(ctx context.Context, name string) string {
	return h.repo.Dir.Path("homes", ownerFolder(session.Owner(ctx)), name)
}

func ownerFolder(owner string) string {
	if owner == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:])
}

// List returns the homes of the context's owner by name; those of all owners if the context is not
// limited.
func (h *Homes) List(ctx context.Context) ([]turnstone.HomeInfo, error) {
	cs, err := h.repo.Open(ctx)
	if err != nil {
		return nil, err
	}
	known, err := cs.DB.Homes(ctx)
	if err != nil {
		return nil, err
	}
	all := []turnstone.HomeInfo{}
	for _, k := range known {
		all = append(all, turnstone.HomeInfo{Name: k.Name, Owner: k.Owner, Bytes: k.Bytes,
			FSHash: k.Tree.Hash, Used: k.Used, Turn: k.Turn})
	}
	if session.Owner(ctx) == "" {
		disks, err := h.disks()
		if err != nil {
			return nil, err
		}
		for _, d := range disks {
			if !slices.ContainsFunc(all, func(i turnstone.HomeInfo) bool {
				return i.Owner == "" && i.Name == d.Name
			}) {
				all = append(all, d)
			}
		}
		slices.SortFunc(all, func(a, b turnstone.HomeInfo) int {
			return strings.Compare(a.Owner+"\n"+a.Name, b.Owner+"\n"+b.Name)
		})
	}
	for i := range all {
		user, used, err := h.usersOf(cs, all[i].Owner, all[i].Name).user(ctx)
		if err != nil {
			return nil, err
		}
		if used {
			all[i].InUse, all[i].Turn = true, user
		}
	}
	return all, ctx.Err()
}

// disks returns the homes that are disks, from before homes were trees.
func (h *Homes) disks() ([]turnstone.HomeInfo, error) {
	dir := h.repo.Dir.Path("homes")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, dir, err).
			WithHint("check its permissions")
	}
	var all []turnstone.HomeInfo
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), diskSuffix)
		if !is || !e.Type().IsRegular() {
			continue
		}
		if fi, err := e.Info(); err == nil { // otherwise it was removed meanwhile
			all = append(all, turnstone.HomeInfo{Name: name, Bytes: statedir.Allocated(fi),
				Used: fi.ModTime().UTC(), Disk: true, Turn: turnOf(filepath.Join(dir, e.Name()))})
		}
	}
	return all, nil
}

// Has returns an error if there is no home with this name.
func (h *Homes) Has(ctx context.Context, name string) error {
	if err := turnstone.CheckName("home", name); err != nil {
		return err
	}
	cs, err := h.repo.Open(ctx)
	if err != nil {
		return err
	}
	if _, ok, err := cs.DB.Home(ctx, name); err != nil || ok {
		return err
	}
	if h.hasDisk(ctx, name) {
		return nil
	}
	return h.notFound(ctx, name)
}

// hasDisk reports whether the home is a disk. Only this host's user has such homes.
func (h *Homes) hasDisk(ctx context.Context, name string) bool {
	if session.Owner(ctx) != "" {
		return false
	}
	_, err := os.Lstat(h.path(ctx, name) + diskSuffix)
	return err == nil
}

// Remove deletes a home with its contents. A home that is in use is an error of kind Unavailable.
func (h *Homes) Remove(ctx context.Context, name string) error {
	fail := func(err error, hint string) error {
		return turnstone.NewError(op, turnstone.KindUnavailable, "home "+name, err).WithHint(hint)
	}
	if err := h.Has(ctx, name); err != nil {
		return err
	}
	cs, err := h.repo.Open(ctx)
	if err != nil {
		return err
	}
	path, all := h.path(ctx, name), h.usersOf(cs, session.Owner(ctx), name)
	lock, err := all.try(ctx)
	if err != nil {
		return fail(err, cmp.Or(turnstone.HintOf(err), "check the permissions of the state directory"))
	}
	if lock == nil {
		user, _, _ := all.user(ctx)
		return fail(fmt.Errorf("%s uses it", userOf(user)), "wait for the turn, or end it")
	}
	defer lock.Release()
	removed, err := cs.DB.RemoveHome(ctx, name)
	if err != nil {
		return err
	}
	disk := h.hasDisk(ctx, name)
	if !removed && !disk {
		return h.notFound(ctx, name)
	}
	if disk {
		if err := removeDisk(path); err != nil {
			return fail(err, "check the permissions of the state directory")
		}
	}
	for _, suffix := range []string{userSuffix, lockSuffix} {
		_ = os.Remove(path + suffix)
	}
	if cs.DB.Shared() && !disk {
		return nil // this machine may have no folder of it
	}
	return filestamp.SyncDir(filepath.Dir(path))
}

// removeDisk removes the disk of a home, and what older programs kept beside it.
func removeDisk(path string) error {
	if err := os.Remove(path + diskSuffix); err != nil {
		return err
	}
	for _, suffix := range []string{".new", userSuffix, lockSuffix} {
		_ = os.Remove(path + diskSuffix + suffix)
	}
	return nil
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
