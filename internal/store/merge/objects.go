package merge

import (
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// This file connects the merge with the stored objects of trees.

func (m *merger) readRoot(ref turnstone.TreeRef) (*tree.Root, error) {
	return tree.GetRoot(m.ctx, m.w, ref)
}

func (m *merger) directory(d turnstone.Digest) (tree.Directory, error) {
	return tree.GetDirectory(m.ctx, m.w, d)
}

// write puts the merged tree into the store.
func (m *merger) write(top *node, links []tree.LinkGroup) (turnstone.TreeRef, error) {
	if err := m.writeDir(top); err != nil {
		return turnstone.TreeRef{}, err
	}
	root := &tree.Root{Entry: top.Entry, Links: links}
	root.Name = ""
	return tree.PutRoot(m.ctx, m.w, root)
}

// writeDir puts a directory and its subdirectories, as far as they are new.
func (m *merger) writeDir(n *node) error {
	if !n.dirty {
		return nil
	}
	dir := make(tree.Directory, 0, len(n.kids))
	for _, k := range n.kids {
		if k.ghost && !hasReal(k) {
			continue
		}
		if err := m.writeDir(k); err != nil {
			return err
		}
		dir = append(dir, k.Entry)
	}
	var err error
	n.Tree, n.Hash, err = tree.PutDirectory(m.ctx, m.w, dir)
	return err
}

// hasReal reports whether a ghost contains anything except ghosts.
func hasReal(n *node) bool {
	return !n.ghost || slices.ContainsFunc(n.kids, hasReal)
}
