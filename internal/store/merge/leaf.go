package merge

import (
	"bytes"
	"cmp"
	"io"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// mergeLeaf merges entries other than directories; one side may be absent.
func (m *merger) mergeLeaf(p string, b, o, t *node) (*node, error) {
	forced := turnstone.ConflictKind("")
	if isLeaf(b) {
		forced = b.forced
	} else {
		b = nil
	}
	switch {
	case o == nil || t == nil:
		return m.leafOrNothing(p, forced, b, o, t), nil
	case o.Type != t.Type:
		switch {
		case b != nil && sameLeafOrDir(b, o):
			return t, nil
		case b != nil && sameLeafOrDir(b, t):
			return o, nil
		}
		return pick(m.decide(Conflict{Path: p, Kind: m.kindAt(p, turnstone.ConflictType)}, b, o, t),
			o, t), nil
	}
	if b != nil && b.Type != o.Type {
		b = nil
	}
	value, err := m.mergeValue(p, b, o, t)
	if err != nil {
		return nil, err
	}
	out := &node{Entry: value.Entry}
	attr := m.mergeAttrs(p, b, o, t)
	out.Mode, out.UID, out.GID, out.MTime, out.Xattrs = attr.Mode, attr.UID,
		attr.GID, attr.MTime, attr.Xattrs
	return out, nil
}

// leafOrNothing merges a file with its absence: deleted if the other side did not change it, kept
// if it is new, otherwise a conflict.
func (m *merger) leafOrNothing(p string, forced turnstone.ConflictKind, b, o, t *node) *node {
	has, kind := o, turnstone.ConflictModifyDelete
	if o == nil {
		has, kind = t, turnstone.ConflictDeleteModify
	}
	if forced != "" {
		kind = forced
	} else if b == nil {
		return has
	} else if sameLeafOrDir(b, has) {
		return nil
	}
	switch m.decide(Conflict{Path: p, Kind: kind}, b, o, t) {
	case turnstone.SideOurs:
		return o
	case turnstone.SideTheirs:
		return t
	}
	return has
}

// pick returns the decided side; ours if undecided.
func pick(side turnstone.Side, o, t *node) *node {
	if side == turnstone.SideTheirs {
		return t
	}
	return o
}

// kindAt returns kind, or its variant for a rename to p.
func (m *merger) kindAt(p string, kind turnstone.ConflictKind) turnstone.ConflictKind {
	if k := m.renamed[p]; k != "" {
		return k
	}
	return kind
}

// mergeValue merges content, target or numbers of three leaves of the same type; b may be nil. Only
// these fields of the result are valid.
func (m *merger) mergeValue(p string, b, o, t *node) (*node, error) {
	switch {
	case sameValue(o, t):
		return o, nil
	case b != nil && sameValue(b, o):
		return t, nil
	case b != nil && sameValue(b, t):
		return o, nil
	}
	kind := turnstone.ConflictAddAdd
	if b != nil {
		kind = map[tree.Type]turnstone.ConflictKind{tree.File: turnstone.ConflictContent,
			tree.Symlink: turnstone.ConflictSymlink}[o.Type]
		if kind == "" {
			kind = turnstone.ConflictDevice
		}
	}
	c := Conflict{Path: p, Kind: m.kindAt(p, kind)}
	if o.Type == tree.File {
		return m.mergeContent(c, b, o, t)
	}
	return pick(m.decide(c, b, o, t), o, t), nil
}

// mergeContent merges the content of three files by lines; the base's file may be missing. c is the
// conflict if that fails.
func (m *merger) mergeContent(c Conflict, b, o, t *node) (*node, error) {
	texts, ok, err := m.texts(b, o, t)
	if err != nil {
		return nil, err
	}
	if !ok {
		return pick(m.decide(c, b, o, t), o, t), nil
	}
	n := names{
		ours:   cmp.Or(m.opts.OursName, "ours"),
		base:   cmp.Or(m.opts.BaseName, "base"),
		theirs: cmp.Or(m.opts.TheirsName, "theirs"),
	}
	merged, conflicts := mergeText(texts[0], texts[1], texts[2], n)
	if conflicts > 0 {
		m.fill(&c, b, o, t)
		side := m.side(c)
		if side != turnstone.SideNone || !m.opts.Markers {
			if side == turnstone.SideNone {
				side = m.opts.Default
			}
			return pick(m.note(c, side), o, t), nil
		}
		c.Resolution = turnstone.GotMarkers
		m.res.Resolved = append(m.res.Resolved, c)
	} else {
		m.res.Merged = append(m.res.Merged, c.Path)
	}
	content, err := m.w.PutContent(m.ctx, bytes.NewReader(merged), int64(len(merged)))
	if err != nil {
		return nil, err
	}
	out := &node{Entry: o.Entry}
	out.Content, out.Size = content, content.Size
	return out, nil
}

// texts reads three files, of which the base's may be missing; false if a file does not support
// merging by lines.
func (m *merger) texts(b, o, t *node) ([3][]byte, bool, error) {
	var texts [3][]byte
	for _, n := range []*node{b, o, t} {
		if n != nil && n.Content.Size > maxText {
			return texts, false, nil
		}
	}
	for i, n := range []*node{b, o, t} {
		if n == nil {
			continue
		}
		var err error
		if texts[i], err = m.read(n); err != nil || !isText(texts[i]) {
			return texts, false, err
		}
	}
	return texts, true, nil
}

// read returns a file's content, which has at most maxText bytes.
func (m *merger) read(n *node) ([]byte, error) {
	r, err := m.w.OpenContent(m.ctx, n.Content)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(r)
	if closed := r.Close(); err == nil {
		err = closed
	}
	return text, err
}

// mergeAttrs merges everything except content and type, field by field. b may be nil.
func (m *merger) mergeAttrs(p string, b, o, t *node) tree.Attr {
	out := o.Attr
	out.Mode = mergeField(m, p, turnstone.ConflictMode, "", b, o, t,
		func(a *tree.Attr) (uint32, bool) { return a.Mode, true }).v
	out.UID = mergeField(m, p, turnstone.ConflictOwner, "user", b, o, t,
		func(a *tree.Attr) (uint32, bool) { return a.UID, true }).v
	out.GID = mergeField(m, p, turnstone.ConflictOwner, "group", b, o, t,
		func(a *tree.Attr) (uint32, bool) { return a.GID, true }).v
	out.MTime = mergeTime(b, o, t)
	out.Xattrs = m.mergeXattrs(p, b, o, t)
	return out
}

// A field is an attribute; an extended attribute may be absent.
type field[T comparable] struct {
	v  T
	ok bool
}

func mergeField[T comparable](m *merger, p string, kind turnstone.ConflictKind, detail string, b, o,
	t *node,
	get func(*tree.Attr) (T, bool)) field[T] {
	of := func(n *node) field[T] {
		if n == nil {
			return field[T]{}
		}
		v, ok := get(&n.Attr)
		return field[T]{v, ok}
	}
	fb, fo, ft := of(b), of(o), of(t)
	switch {
	case fo == ft:
		return fo
	case fb == fo:
		return ft
	case fb == ft:
		return fo
	}
	if m.decide(Conflict{Path: p, Kind: kind, Detail: detail}, b, o, t) == turnstone.SideTheirs {
		return ft
	}
	return fo
}

// mergeXattrs merges extended attributes individually.
func (m *merger) mergeXattrs(p string, b, o, t *node) []tree.Xattr {
	if sameXattrs(o.Xattrs, t.Xattrs) {
		return o.Xattrs
	}
	var all []string
	for _, n := range []*node{b, o, t} {
		if n != nil {
			for _, x := range n.Xattrs {
				all = append(all, x.Name)
			}
		}
	}
	slices.Sort(all)
	var out []tree.Xattr
	for _, name := range slices.Compact(all) {
		f := mergeField(m, p, turnstone.ConflictXattr, name, b, o, t,
			func(a *tree.Attr) (string, bool) {
				i, ok := slices.BinarySearchFunc(a.Xattrs, name,
					func(x tree.Xattr, name string) int { return strings.Compare(x.Name, name) })
				if !ok {
					return "", false
				}
				return string(a.Xattrs[i].Value), true
			})
		if f.ok {
			out = append(out, tree.Xattr{Name: name, Value: []byte(f.v)})
		}
	}
	return out
}

// mergeTime merges timestamps, which never conflict: if both sides changed a timestamp, the later
// counts.
func mergeTime(b, o, t *node) tree.Time {
	switch {
	case o.MTime == t.MTime:
		return o.MTime
	case b != nil && b.MTime == o.MTime:
		return t.MTime
	case b != nil && b.MTime == t.MTime:
		return o.MTime
	case o.MTime.Sec > t.MTime.Sec, o.MTime.Sec == t.MTime.Sec && o.MTime.Nsec > t.MTime.Nsec:
		return o.MTime
	}
	return t.MTime
}
