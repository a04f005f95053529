package lowerdir

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// A model is a file of a file system in memory. A model at several paths has hard links.
type model struct {
	attr     tree.Attr
	content  string
	digest   string // of the content, if only the digest is known
	children map[string]*model
}

func dirModel(mode uint32, children map[string]*model) *model {
	if children == nil {
		children = map[string]*model{}
	}
	return &model{attr: tree.Attr{Type: tree.Dir, Mode: mode, MTime: tree.Time{Sec: 1_700_000_000}},
		children: children}
}

func fileModel(content string) *model {
	return &model{attr: tree.Attr{Type: tree.File, Mode: 0o644,
		MTime: tree.Time{Sec: 1_700_000_001, Nsec: 5}, Size: int64(len(content))}, content: content}
}

// clone copies m; links stay linked.
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

// put puts the tree of m.
func (m *model) put(t testing.TB, w tree.Writer) turnstone.TreeRef {
	t.Helper()
	return treetest.Build(t, w, m.node(map[*model]*treetest.Node{}))
}

// node returns m as a file system shows it. A model at several paths is a single node.
func (m *model) node(seen map[*model]*treetest.Node) *treetest.Node {
	if n := seen[m]; n != nil {
		n.Names++
		return n
	}
	if m.attr.Type == tree.File && m.digest == "" {
		m.attr.Size = int64(len(m.content))
	}
	n := &treetest.Node{A: m.attr, ID: uint64(len(seen)), Names: 1, Data: []byte(m.content)}
	seen[m] = n
	for _, name := range sortedNames(m) {
		n.Kids = append(n.Kids, tree.Child{Name: name, Node: m.children[name].node(seen)})
	}
	return n
}

// list describes m and everything below, a line per file, sorted by path.
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

// describe returns the line of a file. names are all names of the file.
func describe(path string, a *tree.Attr, digest string, names []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q type=%d mode=%o owner=%d:%d mtime=%d.%09d", path, a.Type, a.Mode, a.UID,
		a.GID, a.MTime.Sec, a.MTime.Nsec)
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
