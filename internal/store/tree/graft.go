package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
)

// A Grafter reads and puts the objects of directories and roots.
type Grafter interface {
	Getter
	Putter
}

// Sub returns the directory at an absolute path of a tree, and everything below it, as a tree of
// its own. It does not follow symlinks. Of a file with names outside of the directory too, only the
// names inside remain. A missing path is an error of kind NotFound that matches fs.ErrNotExist; a
// path that is not a directory is an error of kind Invalid that matches syscall.ENOTDIR.
func Sub(ctx context.Context, g Getter, ref turnstone.TreeRef, name string) (*Root, error) {
	root, err := GetRoot(ctx, g, ref)
	if err != nil {
		return nil, err
	}
	e, err := Lookup(ctx, g, ref, name)
	if err != nil {
		return nil, err
	}
	if e.Type != Dir {
		return nil, turnstone.NewError("tree.sub", turnstone.KindInvalid, name, syscall.ENOTDIR)
	}
	sub := &Root{Entry: *e}
	sub.Name = ""
	inside, _ := splitLinks(root.Links, path.Clean("/"+name))
	sub.Links = inside
	return sub, nil
}

// Graft returns the tree base with the directory at an absolute path other than "/", and everything
// below it, replaced by sub; a missing path is made, with missing parents (mode 0755, root's). It
// puts the new directories and the new root. A path whose parents, or which itself, is not a
// directory is an error of kind Invalid that matches syscall.ENOTDIR; symlinks are not followed.
// Of a file with names inside and outside of the path, the names outside remain.
func Graft(ctx context.Context, w Grafter, base turnstone.TreeRef, name string,
	sub *Root) (turnstone.TreeRef, error) {
	clean := path.Clean("/" + name)
	root, err := GetRoot(ctx, w, base)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	if clean == "/" {
		return turnstone.TreeRef{}, turnstone.Errorf("tree.graft", turnstone.KindInvalid, name,
			"the top of a tree cannot be replaced")
	}
	next := &Root{Entry: root.Entry}
	if err := graft(ctx, w, &next.Entry, clean, clean[1:], &sub.Entry); err != nil {
		return turnstone.TreeRef{}, err
	}
	_, next.Links = splitLinks(root.Links, clean)
	for _, g := range sub.Links {
		moved := make(LinkGroup, len(g))
		for i, p := range g {
			moved[i] = clean + p
		}
		next.Links = append(next.Links, moved)
	}
	sortLinks(next.Links)
	return PutRoot(ctx, w, next)
}

// graft replaces the entry at rest, a path relative to dir, in dir. whole is the path for errors.
func graft(ctx context.Context, w Grafter, dir *Entry, whole, rest string, sub *Entry) error {
	if dir.Type != Dir {
		return turnstone.NewError("tree.graft", turnstone.KindInvalid, whole, syscall.ENOTDIR)
	}
	var entries Directory
	if dir.Tree != "" {
		var err error
		if entries, err = GetDirectory(ctx, w, dir.Tree); err != nil {
			return err
		}
	}
	part, rest, more := strings.Cut(rest, "/")
	at, found := slices.BinarySearchFunc(entries, part,
		func(e Entry, name string) int { return strings.Compare(e.Name, name) })
	if !found {
		fresh := Entry{Name: part, Attr: Attr{Type: Dir, Mode: 0o755}}
		entries = slices.Insert(entries, at, fresh)
	}
	e := &entries[at]
	if e.Type != Dir {
		return turnstone.NewError("tree.graft", turnstone.KindInvalid, whole, syscall.ENOTDIR)
	}
	if more {
		if err := graft(ctx, w, e, whole, rest, sub); err != nil {
			return err
		}
	} else {
		*e = *sub
		e.Name = part
	}
	var err error
	dir.Tree, dir.Hash, err = PutDirectory(ctx, w, entries)
	return err
}

// splitLinks returns the groups below dir, relative to it, and those elsewhere. A group with names
// on both sides is divided; a single name is no group.
func splitLinks(groups []LinkGroup, dir string) (inside, outside []LinkGroup) {
	for _, g := range groups {
		var in, out LinkGroup
		for _, p := range g {
			if rest, ok := strings.CutPrefix(p, dir+"/"); ok {
				in = append(in, "/"+rest)
			} else {
				out = append(out, p)
			}
		}
		if len(in) > 1 {
			inside = append(inside, in)
		}
		if len(out) > 1 {
			outside = append(outside, out)
		}
	}
	sortLinks(inside)
	sortLinks(outside)
	return inside, outside
}

func sortLinks(groups []LinkGroup) {
	slices.SortFunc(groups, func(a, b LinkGroup) int { return strings.Compare(a[0], b[0]) })
}

// Ungraft returns what the tree grafted, which began as base with another directory at an absolute
// path, is without that directory: at the path it has what base has there, or an empty directory.
// A file of base with names on both sides of the path, and whose names outside were not changed,
// has all of its names again, so that Ungraft of an unchanged graft is base.
func Ungraft(ctx context.Context, w Grafter, grafted, base turnstone.TreeRef,
	name string) (turnstone.TreeRef, error) {
	clean := path.Clean("/" + name)
	sub, err := Sub(ctx, w, base, clean)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing {
		if sub, err = Empty(ctx, w); err == nil {
			sub.Mode = 0o755
		}
	}
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	plain, err := Graft(ctx, w, grafted, clean, sub)
	if err != nil || missing {
		return plain, err
	}
	before, err := GetRoot(ctx, w, base)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	var across []LinkGroup
	for _, g := range before.Links {
		in := 0
		for _, p := range g {
			if strings.HasPrefix(p, clean+"/") {
				in++
			}
		}
		if in > 0 && in < len(g) {
			across = append(across, g)
		}
	}
	if len(across) == 0 {
		return plain, nil
	}
	return rejoin(ctx, w, plain, base, clean, across)
}

// rejoin makes the groups of base with names on both sides of dir groups of plain again, as far as
// their files are the same.
func rejoin(ctx context.Context, w Grafter, plain, base turnstone.TreeRef, dir string,
	groups []LinkGroup) (turnstone.TreeRef, error) {
	root, err := GetRoot(ctx, w, plain)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	for _, g := range groups {
		same, err := sameFile(ctx, w, plain, base, g)
		if err != nil {
			return turnstone.TreeRef{}, err
		}
		// The names outside must still be one file, without further names.
		var halves []LinkGroup
		inside, outside := splitLinks([]LinkGroup{g}, dir)
		for _, half := range inside {
			for i, p := range half {
				half[i] = dir + p
			}
			halves = append(halves, half)
		}
		halves = append(halves, outside...)
		rest := slices.DeleteFunc(slices.Clone(root.Links), func(have LinkGroup) bool {
			return slices.ContainsFunc(have, func(p string) bool { return slices.Contains(g, p) })
		})
		for _, half := range halves {
			same = same && slices.ContainsFunc(root.Links, func(have LinkGroup) bool {
				return slices.Equal(have, half)
			})
		}
		if same && len(rest)+len(halves) == len(root.Links) {
			root.Links = append(rest, g)
		}
	}
	sortLinks(root.Links)
	return PutRoot(ctx, w, root)
}

// sameFile reports whether all names of g are the same file in both trees.
func sameFile(ctx context.Context, g Getter, a, b turnstone.TreeRef, names LinkGroup) (bool, error) {
	for _, p := range names {
		x, err := Lookup(ctx, g, a, p)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		y, err := Lookup(ctx, g, b, p)
		if err != nil {
			return false, err
		}
		if !x.Attr.Equal(&y.Attr) || x.Content.Digest != y.Content.Digest {
			return false, nil
		}
	}
	return true, nil
}

// Empty returns the tree of an empty directory of root, with mode 0755, and puts its directory.
func Empty(ctx context.Context, p Putter) (*Root, error) {
	dir, hash, err := PutDirectory(ctx, p, nil)
	if err != nil {
		return nil, fmt.Errorf("an empty directory: %w", err)
	}
	return &Root{Entry: Entry{Attr: Attr{Type: Dir, Mode: 0o755}, Tree: dir, Hash: hash}}, nil
}
