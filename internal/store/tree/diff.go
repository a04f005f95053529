package tree

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sort"
	"sync"

	"turnstone.dev/turnstone"
)

// A Change is a path at which two trees differ.
type Change struct {
	Path     string // absolute
	Old, New *Entry // nil if the path does not exist; both exist if only the links differ
	// The names of the file (hard links), including this name, before and after; nil if there is
	// only one. They are shared and must not be changed.
	OldLinks, NewLinks []string
}

// Diff yields the paths at which trees a and b differ, sorted bytewise by path like Walk: "/a",
// "/a-b", "/a/c". Trees differ at entries that exist in only one of them, or whose attributes
// (including timestamps), content or group of names differ. Everything below a directory that
// exists in only one tree is yielded too. The chunks of a content have no influence. Common parts
// of the trees are neither read nor checked; an error ends the sequence.
func Diff(ctx context.Context, g Getter, a, b turnstone.TreeRef) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		if a.Root == b.Root {
			return
		}
		d := &differ{ctx: ctx, g: g, yield: yield}
		if err := d.roots(a, b); err != nil && !d.stopped {
			yield(Change{}, err)
		}
	}
}

// A differ walks two trees together. Its errors are real errors, or errStop if the caller stopped.
type differ struct {
	ctx     context.Context
	g       Getter
	yield   func(Change, error) bool
	stopped bool

	links    [2]func() (map[string]LinkGroup, error) // by path; read on demand
	relinked []string                                // the paths whose group differs, sorted
}

type stopError struct{}

func (stopError) Error() string { return "the caller has seen enough" }

// twoDirs is a directory in both trees; a digest is empty if there is none.
type twoDirs struct{ a, b turnstone.Digest }

func (d *differ) roots(a, b turnstone.TreeRef) error {
	var heads [2]*head
	for i, ref := range []turnstone.TreeRef{a, b} {
		obj, err := d.g.Get(d.ctx, ref.Root)
		if err != nil {
			return err
		}
		if heads[i], err = decodeHead(obj); err != nil {
			return damaged("tree.diff", string(ref.Root), err)
		}
	}
	if err := d.compareLinks(a, b, heads); err != nil {
		return err
	}
	old, now := &heads[0].entry, &heads[1].entry
	if !old.Attr.Equal(&now.Attr) {
		if err := d.emit("/", old, now); err != nil {
			return err
		}
	}
	return d.descend("", twoDirs{old.Tree, now.Tree}, 0)
}

// compareLinks finds the paths whose groups differ. It does not read common objects of the two
// tables.
func (d *differ) compareLinks(a, b turnstone.TreeRef, heads [2]*head) error {
	for i, ref := range []turnstone.TreeRef{a, b} {
		d.links[i] = sync.OnceValues(func() (map[string]LinkGroup, error) {
			if heads[i].groups == 0 {
				return nil, nil
			}
			r, err := GetRoot(d.ctx, d.g, turnstone.TreeRef{Root: ref.Root})
			if err != nil {
				return nil, err
			}
			return byPath(r.Links), nil
		})
	}
	var groups [2][]LinkGroup
	common := commonChunks(heads)
	for i, h := range heads {
		get := func(o turnstone.Digest) ([]byte, error) { return d.g.Get(d.ctx, o) }
		var err error
		if groups[i], err = h.links("tree.diff", get, common); err != nil {
			return err
		}
	}
	// Equal groups are removed; every path of the others differs, unless it is in no group of
	// either side.
	var rest [2][]LinkGroup
	x, y := groups[0], groups[1]
	for len(x) > 0 || len(y) > 0 {
		switch {
		case len(y) == 0 || len(x) > 0 && x[0][0] < y[0][0]:
			rest[0], x = append(rest[0], x[0]), x[1:]
		case len(x) == 0 || y[0][0] < x[0][0]:
			rest[1], y = append(rest[1], y[0]), y[1:]
		default:
			if !slices.Equal(x[0], y[0]) {
				rest[0], rest[1] = append(rest[0], x[0]), append(rest[1], y[0])
			}
			x, y = x[1:], y[1:]
		}
	}
	for _, gs := range rest {
		for _, g := range gs {
			d.relinked = append(d.relinked, g...)
		}
	}
	slices.Sort(d.relinked)
	d.relinked = slices.Compact(d.relinked)
	return nil
}

func byPath(groups []LinkGroup) map[string]LinkGroup {
	m := map[string]LinkGroup{}
	for _, g := range groups {
		for _, p := range g {
			m[p] = g
		}
	}
	return m
}

func commonChunks(heads [2]*head) map[turnstone.Digest]bool {
	in := map[turnstone.Digest]bool{}
	for _, k := range heads[0].chunks {
		in[k.object] = true
	}
	common := map[turnstone.Digest]bool{}
	for _, k := range heads[1].chunks {
		if in[k.object] {
			common[k.object] = true
		}
	}
	return common
}

// emit yields a change.
func (d *differ) emit(path string, old, now *Entry) error {
	c := Change{Path: path, Old: old, New: now}
	for i, to := range []*[]string{&c.OldLinks, &c.NewLinks} {
		groups, err := d.links[i]()
		if err != nil {
			return err
		}
		*to = groups[path]
	}
	if !d.yield(c, nil) {
		d.stopped = true
		return stopError{}
	}
	return nil
}

// below returns the paths of relinked that are in the directory at path, or below.
func (d *differ) below(path string) []string {
	from := sort.SearchStrings(d.relinked, path+"/")
	to := from + sort.SearchStrings(d.relinked[from:], path+"0") // the byte after "/"
	return d.relinked[from:to]
}

// descend compares two directories' entries; path ends without a slash.
func (d *differ) descend(path string, dirs twoDirs, depth int) error {
	if dirs.a == dirs.b && len(d.below(path)) == 0 {
		return nil
	}
	var raw [2]rawDir
	for i, dir := range []turnstone.Digest{dirs.a, dirs.b} {
		if dir == "" {
			continue
		}
		var err error
		if raw[i], err = getRaw(d.ctx, d.g, dir, depth); err != nil {
			return err
		}
	}
	s := &sideBySide{raw: raw}
	relinked := d.below(path)
	var due pending[twoDirs]
	visit := func(name string, t twoDirs) error { return d.descend(path+"/"+name, t, depth+1) }
	for {
		if len(relinked) == 0 {
			s.skipEqual()
		}
		name, bodies, ok, err := s.next()
		if err != nil {
			return damaged("tree.diff", fmt.Sprintf("the directory at %q", path+"/"), err)
		}
		if err := due.before(name, ok, visit); err != nil || !ok {
			return err
		}
		below, err := d.entry(path, string(name), bodies)
		if err != nil {
			return err
		}
		if below != (twoDirs{}) {
			due.push(string(name), below)
		}
	}
}

// entry compares two entries with the same name, and returns what to compare below them.
func (d *differ) entry(dir, name string, bodies [2][]byte) (twoDirs, error) {
	path := dir + "/" + name
	var es [2]*Entry
	for i, body := range bodies {
		if body == nil {
			continue
		}
		es[i] = &Entry{Name: name}
		if err := decodeBody(body, es[i]); err != nil {
			return twoDirs{}, damaged("tree.diff", path, err)
		}
	}
	old, now := es[0], es[1]
	differs := old == nil || now == nil || !old.Attr.Equal(&now.Attr) ||
		old.Content.Digest != now.Content.Digest
	if !differs {
		_, differs = slices.BinarySearch(d.relinked, path)
	}
	if differs {
		if err := d.emit(path, old, now); err != nil {
			return twoDirs{}, err
		}
	}
	var below twoDirs
	if old != nil && old.Type == Dir {
		below.a = old.Tree
	}
	if now != nil && now.Type == Dir {
		below.b = now.Tree
	}
	return below, nil
}

// sideBySide iterates over the names of two directories.
type sideBySide struct {
	raw  [2]rawDir
	name [2][]byte // nil: not read yet
	body [2][]byte
	end  [2]bool
}

// skipEqual skips entries that are the same on both sides. It compares their encodings and decodes
// only their lengths.
func (s *sideBySide) skipEqual() {
	if s.name[0] != nil || s.name[1] != nil {
		return
	}
	a, b := s.raw[0].b, s.raw[1].b
	for {
		c := cursor{b: a}
		name := c.bytes(maxName)
		c.bytes(math.MaxInt32)
		n := len(a) - len(c.b)
		if c.err != nil || n > len(b) || !bytes.Equal(a[:n], b[:n]) {
			break
		}
		a, b = c.b, b[n:]
		s.raw[0].last, s.raw[1].last = name, name
	}
	s.raw[0].b, s.raw[1].b = a, b
}

// next returns the next name and its body on both sides, nil if absent.
func (s *sideBySide) next() (name []byte, bodies [2][]byte, ok bool, err error) {
	for i := range s.raw {
		if s.name[i] != nil || s.end[i] {
			continue
		}
		if s.name[i], s.body[i], ok, err = s.raw[i].next(); err != nil {
			return nil, bodies, false, err
		}
		s.end[i] = !ok
	}
	take := [2]bool{!s.end[0], !s.end[1]}
	if !take[0] && !take[1] {
		return nil, bodies, false, nil
	}
	if take[0] && take[1] {
		order := bytes.Compare(s.name[0], s.name[1])
		take[0], take[1] = order <= 0, order >= 0
	}
	for i := range take {
		if take[i] {
			name, bodies[i], s.name[i] = s.name[i], s.body[i], nil
		}
	}
	return name, bodies, true, nil
}
