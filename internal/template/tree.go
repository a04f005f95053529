package template

import (
	"context"
	"errors"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template/treeindex"
)

// Tree returns the tree that t's sandboxes begin with. Of a layered template it is in
// the context store; else it is that of RootTree.
func (s *Store) Tree(ctx context.Context, t *Template, w tree.Writer) (tree.Ref, error) {
	ref, err := s.RootTree(ctx, t, w)
	if n := len(t.Layers); err == nil && n > 0 {
		ref = t.Layers[n-1].Tree
	}
	return ref, err
}

// RootTree returns the tree that t's root image holds. Its directories' objects are put
// into w unless w has the root's; the contents are not: they are where t.Content finds
// them. The first call for an image reads all of it, at some 500 MB/s, and keeps what it
// found beside it; calls at once, in whatever processes, do that once. The next ones
// look at one small file.
func (s *Store) RootTree(ctx context.Context, t *Template, w tree.Writer) (tree.Ref, error) {
	failed := func(err error) error {
		var typed *turnstone.Error
		if errors.As(err, &typed) {
			return err
		}
		return turnstone.NewError("template.tree", turnstone.KindUnavailable, "template "+t.Name,
			err)
	}
	x, err := s.treeIndex(ctx, t)
	if err != nil {
		return tree.Ref{}, failed(err)
	}
	defer x.Close()
	ref, err := x.Put(ctx, w)
	if turnstone.KindOf(err) != turnstone.KindIntegrity {
		if err != nil {
			err = failed(err)
		}
		return ref, err
	}
	// What was kept is damaged: make it anew, once.
	if err := t.root().Remove(); err != nil {
		return tree.Ref{}, failed(err)
	}
	again, err := s.treeIndex(ctx, t)
	if err != nil {
		return tree.Ref{}, failed(err)
	}
	defer again.Close()
	return again.Put(ctx, w)
}

func (t *Template) root() treeindex.Root {
	return treeindex.Root{Name: t.Name, Path: t.Root, Digest: t.RootDigest}
}

// treeIndex opens the index, and makes it first where there is none that fits.
func (s *Store) treeIndex(ctx context.Context, t *Template) (*treeindex.Index, error) {
	if x, err := t.root().Index(); err == nil {
		return x, nil
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(s.dir, "locks", t.RootDigest.Hex()+".tree.lock"), nil)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if x, err := t.root().Index(); err == nil {
		return x, nil // another process has made it
	}
	if err := t.root().Write(ctx); err != nil {
		return nil, err
	}
	return t.root().Index()
}

// Content returns where the contents of t's tree are. Store.Tree must have been called
// for t once, in whatever process; without it there is nothing in it.
func (t *Template) Content() *treeindex.Content { return t.root().Content() }
