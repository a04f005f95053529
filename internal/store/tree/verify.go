package tree

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
)

// A Verifier verifies trees, and their common parts once. It is not safe for concurrent use.
type Verifier struct {
	g     Getter
	dirs  map[turnstone.Digest]turnstone.Digest // FS hashes of directories, by object
	trees map[turnstone.TreeRef]bool            // verified trees
}

// NewVerifier returns a Verifier that reads objects from g.
func NewVerifier(g Getter) *Verifier {
	return &Verifier{g: g, dirs: map[turnstone.Digest]turnstone.Digest{},
		trees: map[turnstone.TreeRef]bool{}}
}

// Verify reads the whole tree, except the parts that v has verified, and computes its FS hash
// again. A mismatch is an error of kind Integrity: a malformed object, a wrong FS hash of a
// directory or of the tree, a hard link to a missing path or to another file. Verify does not read
// the contents. The FS hash of ref may be empty.
func (v *Verifier) Verify(ctx context.Context, ref turnstone.TreeRef) error {
	if v.trees[ref] {
		return nil
	}
	r, err := GetRoot(ctx, v.g, ref)
	if err != nil {
		return err
	}
	if err := v.dir(ctx, &r.Entry, "/", 0); err != nil {
		return err
	}
	if err := v.links(ctx, r); err != nil {
		return err
	}
	v.trees[ref] = true
	return nil
}

func (v *Verifier) dir(ctx context.Context, e *Entry, name string, depth int) error {
	hash, ok := v.dirs[e.Tree]
	if !ok {
		if depth > MaxDepth {
			return damaged("tree.verify", string(e.Tree),
				fmt.Errorf("is more than %d directories deep", MaxDepth))
		}
		d, err := v.directory(ctx, e)
		if err != nil {
			return err
		}
		for i := range d {
			if d[i].Type == Dir {
				if err := v.dir(ctx, &d[i], d[i].Name, depth+1); err != nil {
					return err
				}
			}
		}
		hash = d.fsHash()
		v.dirs[e.Tree] = hash
	}
	if hash != e.Hash {
		return damaged("tree.verify", string(e.Tree),
			fmt.Errorf("the directory %q has the FS hash %s, not %s", name, hash, e.Hash))
	}
	return nil
}

func (v *Verifier) directory(ctx context.Context, e *Entry) (Directory, error) {
	if err := ctx.Err(); err != nil {
		return nil, turnstone.NewError("tree.verify", turnstone.KindCanceled, "", err)
	}
	return GetDirectory(ctx, v.g, e.Tree)
}

// A linkName is a directory or a name in the table of hard links: each directory of the paths is
// read once, however many paths use it.
type linkName struct {
	group int // 1 and up; 0: a directory
	names map[string]*linkName
}

// links checks that all names of each group are names of the same file.
func (v *Verifier) links(ctx context.Context, r *Root) error {
	if len(r.Links) == 0 {
		return nil
	}
	top := &linkName{names: map[string]*linkName{}}
	for i, group := range r.Links {
		for _, p := range group {
			if err := top.add(p, i+1); err != nil {
				return damaged("tree.verify", p, err)
			}
		}
	}
	return v.linksIn(ctx, &r.Entry, "", top, r.Links, make([]*Entry, len(r.Links)))
}

func (n *linkName) add(p string, group int) error {
	for rest := p[1:]; ; {
		name, below, deeper := strings.Cut(rest, "/")
		next := n.names[name]
		switch {
		case next != nil && !deeper && next.group > 0:
			return errors.New("is in two groups of hard links")
		case next != nil && (!deeper || next.group > 0):
			return errors.New("is a directory among hard links")
		case next == nil && !deeper:
			n.names[name] = &linkName{group: group}
			return nil
		case next == nil:
			next = &linkName{names: map[string]*linkName{}}
			n.names[name] = next
		}
		n, rest = next, below
	}
}

// linksIn checks the names of hard links in and below a directory. first has each group's first
// entry.
func (v *Verifier) linksIn(ctx context.Context, at *Entry, path string, names *linkName,
	groups []LinkGroup, first []*Entry) error {
	d, err := v.directory(ctx, at)
	if err != nil {
		return err
	}
	found := 0
	for i := range d {
		e := &d[i]
		n := names.names[e.Name]
		if n == nil {
			continue
		}
		found++
		p := path + "/" + e.Name
		switch {
		case n.group == 0 && e.Type == Dir:
			err = v.linksIn(ctx, e, p, n, groups, first)
		case n.group == 0:
			err = damaged("tree.verify", p,
				errors.New("is not a directory, and the root lists hard links in it"))
		case e.Type == Dir:
			err = damaged("tree.verify", p, errors.New("is a directory among hard links"))
		case first[n.group-1] == nil:
			first[n.group-1] = e
		case !first[n.group-1].Attr.Equal(&e.Attr) || first[n.group-1].Content != e.Content:
			err = damaged("tree.verify", p,
				fmt.Errorf("is not the same file as the others of the hard link %q",
					groups[n.group-1][0]))
		}
		if err != nil {
			return err
		}
	}
	if found < len(names.names) {
		return damaged("tree.verify", path+"/",
			errors.New("does not contain all of the hard links that the root lists in it"))
	}
	return nil
}
