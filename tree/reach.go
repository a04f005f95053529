package tree

import (
	"context"
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
)

// A Visitor sees what a tree consists of. Either function may be nil.
type Visitor struct {
	// Object sees the root, the objects of its links and the directories' objects, each
	// before what is below it. When it returns false, what is below is left out: it
	// was seen before.
	Object func(d turnstone.Digest) (further bool, err error)
	// Content sees the content of each file, as often as it is there.
	Content func(c Content) error
}

// Reach shows v all objects and contents that the tree of ref consists of, for
// those who keep, copy or count them. Memory is bounded by the tree's depth.
func Reach(ctx context.Context, g Getter, ref Ref, v Visitor) error {
	if v.Object == nil {
		v.Object = func(turnstone.Digest) (bool, error) { return true, nil }
	}
	if v.Content == nil {
		v.Content = func(Content) error { return nil }
	}
	further, err := v.Object(ref.Root)
	if err != nil || !further {
		return err
	}
	b, err := g.Get(ctx, ref.Root)
	if err != nil {
		return err
	}
	h, err := decodeHead(b)
	if err != nil {
		return named(ref.Root, damaged("tree.decode", "a root's object", err))
	}
	for _, k := range h.chunks {
		if _, err := v.Object(k.object); err != nil {
			return err
		}
	}
	return reach(ctx, g, h.entry.Tree, v, 0)
}

func reach(ctx context.Context, g Getter, dir turnstone.Digest, v Visitor, depth int) error {
	further, err := v.Object(dir)
	if err != nil || !further {
		return err
	}
	raw, err := getRaw(ctx, g, dir, depth)
	if err != nil {
		return err
	}
	for {
		name, body, ok, err := raw.next()
		var e Entry
		if err == nil && ok {
			err = decodeBody(body, &e)
		}
		switch {
		case err != nil:
			return damaged("tree.reach", string(dir), fmt.Errorf("%q: %w", name, err))
		case !ok:
			return nil
		case e.Type == File:
			err = v.Content(e.Content)
		case e.Type == Dir:
			err = reach(ctx, g, e.Tree, v, depth+1)
		}
		if err != nil {
			return err
		}
	}
}

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
