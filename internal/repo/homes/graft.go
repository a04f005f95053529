package homes

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Base is the state that a sandbox with a home starts from.
type Base struct {
	Root   turnstone.TreeRef         // the template's root image
	Layers []turnstone.TemplateLayer // the template's
	Parent *turnstone.Turn           // nil: the template
	Tree   turnstone.TreeRef         // the state's
}

// Images returns the images, lowest first, that together with the template's root image are base
// with the home at $HOME, whose value is dir. They stay until release is called. They are made
// against the nearest earlier state with this home whose images exist.
func (h *Home) Images(ctx context.Context, base Base, dir string) (paths []string, release func(),
	err error) {
	batch, err := h.cs.Store.Begin(ctx) // keeps the grafts from gc until their images exist
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = batch.Close() }()
	if err := h.place(ctx, batch, base.Tree, dir); err != nil {
		return nil, nil, err
	}
	return h.cs.Images.Stack(ctx, base.Root, h.history(ctx, batch, base))
}

// Onto returns the tree base with the home where Images has put it.
func (h *Home) Onto(ctx context.Context, w tree.Grafter, base turnstone.TreeRef) (turnstone.TreeRef,
	error) {
	root, err := h.began(ctx, w)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	return tree.Graft(ctx, w, base, h.path, root)
}

// kernelDirs are not of the state, so a home in them would be lost.
var kernelDirs = []string{"/context", "/dev", "/proc", "/run", "/sys"}

// place determines the path of the home in the tree base: dir without symlinks, as a process finds
// it.
func (h *Home) place(ctx context.Context, g tree.Getter, base turnstone.TreeRef, dir string) error {
	fail := func(format string, args ...any) error {
		return turnstone.Errorf(op, turnstone.KindInvalid, "home "+h.Name, format, args...).
			WithHint("set HOME to a directory, such as with env: HOME=/root")
	}
	real, e, err := tree.Resolve(ctx, g, base, dir)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return fail("$HOME is %s, and a part of this path is a file", dir)
	case errors.Is(err, fs.ErrNotExist):
		real = path.Clean("/" + dir)
	case err != nil:
		return err
	case e.Type != tree.Dir:
		return fail("$HOME is %s, which is no directory", dir)
	}
	if real == "/" {
		return fail("$HOME is the top of the file system")
	}
	for _, d := range kernelDirs {
		if real == d || strings.HasPrefix(real, d+"/") {
			return fail("$HOME is %s, and nothing below %s outlives a sandbox", dir, d)
		}
	}
	h.path = real
	return nil
}

// onto puts the tree on with the home ref, and makes it durable, because images are made from it.
func (h *Home) onto(ctx context.Context, b *store.Batch, on, ref turnstone.TreeRef) (
	turnstone.TreeRef, error) {
	var root *tree.Root
	var err error
	if ref == h.Began {
		root, err = h.began(ctx, b)
	} else {
		root, err = tree.GetRoot(ctx, b, ref)
	}
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	both, err := tree.Graft(ctx, b, on, h.path, root)
	if errors.Is(err, syscall.ENOTDIR) {
		return both, turnstone.NewError(op, turnstone.KindInvalid, "home "+h.Name, err).
			WithHint("set HOME to a directory, such as with env: HOME=/root")
	}
	if err != nil {
		return both, err
	}
	return both, b.Flush(ctx)
}

// history yields base with the home, and below it the earlier states that had a state of the home,
// then those without one.
func (h *Home) history(ctx context.Context, b *store.Batch, base Base) lowerdir.History {
	if base.Parent == nil {
		return h.ofTemplate(ctx, b, base)
	}
	return func(yield func(lowerdir.Item, error) bool) {
		first, grafting := true, true
		for item, err := range h.cs.History(ctx, base.Parent, base.Layers) {
			if err != nil {
				yield(item, err)
				return
			}
			var ended turnstone.TreeRef
			if grafting {
				ended, err = h.leftBy(ctx, item)
			}
			if err == nil && first && ended.Root != h.Began.Root {
				top := lowerdir.Item{Key: repo.HomeKey(item.Key, h.Began.Root), Number: item.Number}
				if top.Tree, err = h.onto(ctx, b, item.Tree, h.Began); err == nil && !yield(top, nil) {
					return
				}
			}
			first = false
			if grafting = grafting && ended.Root != ""; err == nil && grafting {
				item.Key = repo.HomeKey(item.Key, ended.Root)
				item.Tree, err = h.onto(ctx, b, item.Tree, ended)
			}
			if err != nil {
				yield(lowerdir.Item{}, err)
				return
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}

// leftBy returns the tree that the turn of item left as this home; zero if it did not use it.
func (h *Home) leftBy(ctx context.Context, item lowerdir.Item) (ref turnstone.TreeRef, err error) {
	if item.Side {
		return ref, nil
	}
	u, ok, err := h.cs.DB.RecordHomeUse(ctx, item.Key)
	if err != nil || !ok || u.Name != h.Name {
		return ref, err
	}
	return u.Ended, nil
}

// maxStates bounds the earlier states of a home for which images are looked up.
const maxStates = 32

// ofTemplate is history on a template: with the earlier states of the home, newest first.
func (h *Home) ofTemplate(ctx context.Context, b *store.Batch, base Base) lowerdir.History {
	return func(yield func(lowerdir.Item, error) bool) {
		uses, err := h.cs.DB.HomeUses(ctx, h.Name, maxStates)
		states, seen := []turnstone.TreeRef{h.Began}, repo.Seen{h.Began.Root: true}
		for _, u := range uses {
			for _, ref := range []turnstone.TreeRef{u.Ended, u.Began} {
				if seen.First(ref.Root) && !h.Recorded {
					states = append(states, ref)
				}
			}
		}
		for _, ref := range states {
			item := lowerdir.Item{Key: repo.HomeKey("", ref.Root)}
			if err == nil {
				item.Tree, err = h.onto(ctx, b, base.Tree, ref)
			}
			if err != nil {
				yield(lowerdir.Item{}, err)
				return
			}
			if !yield(item, nil) {
				return
			}
		}
		for item, err := range h.cs.History(ctx, nil, base.Layers) {
			if !yield(item, err) {
				return
			}
		}
	}
}
