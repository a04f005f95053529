package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/tree"
)

// memory is a tree.Writer that keeps everything in memory.
type memory struct {
	mu      sync.Mutex
	objects map[turnstone.Digest][]byte
	opened  int
}

func newMemory() *memory { return &memory{objects: make(map[turnstone.Digest][]byte)} }

func (m *memory) Put(_ context.Context, b []byte) (turnstone.Digest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := turnstone.DigestBytes(b)
	m.objects[d] = bytes.Clone(b)
	return d, nil
}

func (m *memory) Get(_ context.Context, d turnstone.Digest) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.objects[d]
	if !ok {
		return nil, &turnstone.Error{Op: "memory.get", Kind: turnstone.NotFound, Subject: string(d)}
	}
	return b, nil
}

func (m *memory) PutContent(ctx context.Context, r io.Reader, size int64) (tree.Content, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return tree.Content{}, err
	}
	d, err := m.Put(ctx, b)
	return tree.Content{Digest: d, Size: size}, err
}

func (m *memory) OpenContent(ctx context.Context, c tree.Content) (io.ReadCloser, error) {
	b, err := m.Get(ctx, c.Digest)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.opened++
	m.mu.Unlock()
	return io.NopCloser(bytes.NewReader(b)), nil
}

// A model is a file of a file system in memory. One that stands in several places
// has hard links.
type model struct {
	attr     tree.Attr
	content  string
	digest   string // of the content, where only that is known
	children map[string]*model
}

func dirModel(mode uint32, children map[string]*model) *model {
	if children == nil {
		children = map[string]*model{}
	}
	return &model{attr: tree.Attr{Type: tree.Dir, Mode: mode, MTime: tree.Time{Sec: 1_700_000_000}}, children: children}
}

func fileModel(content string) *model {
	return &model{attr: tree.Attr{Type: tree.File, Mode: 0o644, MTime: tree.Time{Sec: 1_700_000_001, Nsec: 5}, Size: int64(len(content))}, content: content}
}

// clone copies m; what is linked stays linked.
func (m *model) clone(seen map[*model]*model) *model {
	if c := seen[m]; c != nil {
		return c
	}
	c := &model{attr: m.attr, content: m.content}
	c.attr.Xattrs = slices.Clone(m.attr.Xattrs)
	seen[m] = c
	if m.children != nil {
		c.children = make(map[string]*model)
		for name, child := range m.children {
			c.children[name] = child.clone(seen)
		}
	}
	return c
}

// put makes the tree of m.
func (m *model) put(t testing.TB, w tree.Writer) tree.Ref {
	t.Helper()
	paths := make(map[*model][]string)
	root := tree.Root{Entry: m.entry(t, w, "", "", paths)}
	for _, group := range paths {
		if len(group) > 1 {
			slices.Sort(group)
			root.Links = append(root.Links, group)
		}
	}
	slices.SortFunc(root.Links, func(a, b tree.LinkGroup) int { return strings.Compare(a[0], b[0]) })
	ref, err := tree.PutRoot(t.Context(), w, &root)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func (m *model) entry(t testing.TB, w tree.Writer, path, name string, paths map[*model][]string) tree.Entry {
	t.Helper()
	if m.attr.Type == tree.File {
		m.attr.Size = int64(len(m.content))
	}
	e := tree.Entry{Name: name, Attr: m.attr}
	switch m.attr.Type {
	case tree.Dir:
		var d tree.Directory
		for _, child := range slices.Sorted(maps.Keys(m.children)) {
			d = append(d, m.children[child].entry(t, w, path+"/"+child, child, paths))
		}
		var err error
		if e.Tree, e.Hash, err = tree.PutDirectory(t.Context(), w, d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return e
	case tree.File:
		c, err := w.PutContent(t.Context(), strings.NewReader(m.content), int64(len(m.content)))
		if err != nil {
			t.Fatal(err)
		}
		e.Content, e.Size = c, c.Size
	}
	paths[m] = append(paths[m], path)
	return e
}

// list describes m and all below it, a line for each, sorted by path.
func (m *model) list() []string {
	paths := make(map[*model][]string)
	m.collect("", paths)
	var lines []string
	for n, all := range paths {
		slices.Sort(all)
		for _, path := range all {
			digest := n.digest
			if digest == "" {
				digest = turnstone.DigestBytes([]byte(n.content)).Hex()
			}
			lines = append(lines, describe(path, &n.attr, digest, all))
		}
	}
	slices.Sort(lines)
	return lines
}

func (m *model) collect(path string, paths map[*model][]string) {
	paths[m] = append(paths[m], path)
	for name, c := range m.children {
		c.collect(path+"/"+name, paths)
	}
}

// describe is one line on one file. names are all that the file has.
func describe(path string, a *tree.Attr, digest string, names []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q type=%d mode=%o owner=%d:%d mtime=%d.%09d", path, a.Type, a.Mode, a.UID, a.GID, a.MTime.Sec, a.MTime.Nsec)
	if a.Type == tree.File {
		fmt.Fprintf(&b, " size=%d content=%.12s", a.Size, digest)
	}
	if a.Type == tree.Symlink {
		fmt.Fprintf(&b, " target=%q", a.Target)
	}
	if a.Type == tree.Char || a.Type == tree.Block {
		fmt.Fprintf(&b, " device=%d:%d", a.Major, a.Minor)
	}
	for _, x := range a.Xattrs {
		fmt.Fprintf(&b, " %s=%x", x.Name, x.Value)
	}
	if len(names) > 1 {
		fmt.Fprintf(&b, " names=%q", names)
	}
	return b.String()
}
