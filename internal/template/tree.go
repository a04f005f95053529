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

// Tree returns the initial tree of t's sandboxes. For a layered template it is in the context
// store; otherwise it is the tree of RootTree.
func (s *Store) Tree(ctx context.Context, t *turnstone.Template, w tree.Writer) (turnstone.TreeRef,
	error) {
	ref, err := s.RootTree(ctx, t, w)
	if n := len(t.Layers); err == nil && n > 0 {
		ref = t.Layers[n-1].Tree
	}
	return ref, err
}

// RootTree returns the tree of t's root image. It puts the directories' objects into w unless w has
// the root's, but not the contents: ContentOf finds these. The first call for an image reads the
// whole image, at about 500 MB/s, and keeps the resulting index beside it; concurrent calls, also
// in several processes, do so once. Later calls read one small file.
func (s *Store) RootTree(ctx context.Context, t *turnstone.Template,
	w tree.Writer) (turnstone.TreeRef,
	error) {
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
		return turnstone.TreeRef{}, failed(err)
	}
	defer x.Close()
	ref, err := x.Put(ctx, w)
	if turnstone.KindOf(err) != turnstone.KindIntegrity {
		if err != nil {
			err = failed(err)
		}
		return ref, err
	}
	// The kept index is damaged: create it again, once.
	if err := rootOf(t).Remove(); err != nil {
		return turnstone.TreeRef{}, failed(err)
	}
	again, err := s.treeIndex(ctx, t)
	if err != nil {
		return turnstone.TreeRef{}, failed(err)
	}
	defer again.Close()
	return again.Put(ctx, w)
}

func rootOf(t *turnstone.Template) treeindex.Root {
	return treeindex.Root{Name: t.Name, Path: t.Root, Digest: t.RootDigest}
}

// treeIndex opens the index, and first creates it if there is no matching index.
func (s *Store) treeIndex(ctx context.Context, t *turnstone.Template) (*treeindex.Index, error) {
	if x, err := rootOf(t).Index(); err == nil {
		return x, nil
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	lock, err := statedir.Acquire(ctx,
		filepath.Join(s.dir, "locks", t.RootDigest.Hex()+".tree.lock"), nil)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if x, err := rootOf(t).Index(); err == nil {
		return x, nil // another process has created it
	}
	if err := rootOf(t).Write(ctx); err != nil {
		return nil, err
	}
	return rootOf(t).Index()
}

// ContentOf returns the location of the contents of t's tree. Store.Tree must have been called for
// t once, in any process; otherwise the result has no contents.
func ContentOf(t *turnstone.Template) *treeindex.Content { return rootOf(t).Content() }
