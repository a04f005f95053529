package tree

import (
	"context"
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
)

// Verify reads all of the tree and computes its FS hash anew. What is not as it says
// is an error of kind Integrity: an object that is malformed, an FS hash of a directory or of
// the tree that is another, a hard link to what is not there or is another
// file. The contents themselves are not read. The FS hash of ref may be empty.
func Verify(ctx context.Context, g Getter, ref Ref) error {
	r, err := GetRoot(ctx, g, ref)
	if err != nil {
		return err
	}
	v := &verifier{ctx: ctx, g: g, seen: map[turnstone.Digest]turnstone.Digest{}}
	if err := v.dir(&r.Entry, "/", 0); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, group := range r.Links {
		if err := v.group(ref, group, seen); err != nil {
			return err
		}
	}
	return nil
}

type verifier struct {
	ctx  context.Context
	g    Getter
	seen map[turnstone.Digest]turnstone.Digest // FS hashes of directories, by object
}

func (v *verifier) dir(e *Entry, name string, depth int) error {
	hash, ok := v.seen[e.Tree]
	if !ok {
		if err := v.ctx.Err(); err != nil {
			return &turnstone.Error{Op: "tree.verify", Kind: turnstone.Canceled, Err: err}
		}
		if depth > MaxDepth {
			return damaged("tree.verify", string(e.Tree), fmt.Errorf("is more than %d directories deep", MaxDepth))
		}
		d, err := GetDirectory(v.ctx, v.g, e.Tree)
		if err != nil {
			return err
		}
		for i := range d {
			if d[i].Type == Dir {
				if err := v.dir(&d[i], d[i].Name, depth+1); err != nil {
					return err
				}
			}
		}
		hash = d.FSHash()
		v.seen[e.Tree] = hash
	}
	if hash != e.Hash {
		return damaged("tree.verify", string(e.Tree), fmt.Errorf("the directory %q has the FS hash %s, not %s", name, hash, e.Hash))
	}
	return nil
}

// group checks that all names of a group are those of one file.
func (v *verifier) group(ref Ref, group LinkGroup, seen map[string]bool) error {
	var first *Entry
	for _, p := range group {
		e, err := Lookup(v.ctx, v.g, ref, p)
		if err == nil {
			switch {
			case seen[p]:
				err = errors.New("is in two groups of hard links")
			case e.Type == Dir:
				err = errors.New("is a directory among hard links")
			case first != nil && (!first.Attr.Equal(&e.Attr) || first.Content != e.Content):
				err = fmt.Errorf("is not the same file as %q", group[0])
			}
		}
		if err != nil {
			if k := turnstone.KindOf(err); k != turnstone.NotFound && k != turnstone.Internal {
				return err
			}
			return damaged("tree.verify", p, err)
		}
		seen[p] = true
		if first == nil {
			first = e
		}
	}
	return nil
}
