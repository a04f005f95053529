package homes

import (
	"context"
	"errors"
	"fmt"
	"os"

	"path/filepath"
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
)

// convert makes the disk of a home a tree, and removes it. The home is held. The host mounts
// nothing: the disk is read as an untrusted file.
func (h *Homes) convert(ctx context.Context, cs *repo.ContextStore, req Request,
	progress func(string)) error {
	path := h.path(ctx, req.Name)
	// A program from before homes were trees may use the disk: it holds the disk's own lock.
	lock, err := statedir.TryAcquire(path + diskSuffix + lockSuffix)
	if err == nil && lock == nil {
		return turnstone.Errorf(op, turnstone.KindUnavailable, "home "+req.Name,
			"%s uses its disk, in an older version of turn", userOf(turnOf(path+diskSuffix))).
			WithHint("wait for the turn, or end it")
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	_, known, err := cs.DB.Home(ctx, req.Name)
	if err != nil {
		return err
	}
	if !known {
		progress("home " + req.Name + " is a disk, and becomes a tree of the store")
		if req.Room != nil {
			if err := req.Room(); err != nil {
				return err
			}
		}
		if err := h.adopt(ctx, cs, req, path+diskSuffix); err != nil {
			return turnstone.NewError(op, turnstone.KindOf(err), "home "+req.Name,
				fmt.Errorf("its disk %s cannot be read: %w", path+diskSuffix, repo.CauseOf(err))).
				WithHint(hintFor(err, path+diskSuffix))
		}
	}
	// A crash after the tree became durable left the disk.
	if err := removeDisk(path); err != nil {
		return turnstone.NewError(op, turnstone.KindUnavailable, "home "+req.Name, err).
			WithHint("check the permissions of the state directory")
	}
	return filestamp.SyncDir(filepath.Dir(path))
}

func hintFor(err error, path string) string {
	if errors.Is(err, ext4.ErrJournal) {
		return "its last machine ended while it was mounted: run the turn on a microVM, which " +
			"repairs it, or run e2fsck -p " + path
	}
	return "repair it with e2fsck, or remove the home with turn home rm; nothing was changed"
}

// adopt stores the files of the disk at path as the tree of the home.
func (h *Homes) adopt(ctx context.Context, cs *repo.ContextStore, req Request, path string) error {
	batch, err := cs.Store.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = batch.Close() }()
	ref, err := readDisk(ctx, batch, path)
	if errors.Is(err, ext4.ErrJournal) && req.Repair != nil {
		if err = req.Repair(ctx, path); err == nil {
			ref, err = readDisk(ctx, batch, path)
		}
	}
	if err != nil {
		return err
	}
	var bytes int64
	err = tree.Walk(ctx, batch, ref, "/", func(_ string, e *tree.Entry) error {
		bytes += e.Size
		return nil
	})
	if err != nil {
		return err
	}
	if err := batch.Flush(ctx); err != nil {
		return err
	}
	return cs.DB.AddHome(ctx, req.Name, ref, bytes)
}

// readDisk puts the files of a home's disk, which are below its directory home.
func readDisk(ctx context.Context, w tree.Writer, path string) (turnstone.TreeRef, error) {
	f, err := os.Open(path)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	disk, err := ext4.Open(f, st.Size())
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	top, err := disk.Lookup("home")
	if turnstone.KindOf(err) == turnstone.KindNotFound { // no machine has mounted it
		root, err := tree.Empty(ctx, w)
		if err != nil {
			return turnstone.TreeRef{}, err
		}
		return tree.PutRoot(ctx, w, root)
	}
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	return tree.Build(ctx, w, top, tree.BuildOptions{})
}
