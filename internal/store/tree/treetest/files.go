package treetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A File describes a file of a tree.
type File struct {
	// Path may have a leading slash. With a trailing slash it is a directory; "/" is the top
	// directory. Implicit directories have mode 0755.
	Path string
	// 0: a symlink if there is a Target, a directory if Path ends in a slash, else a file
	Type tree.Type
	Mode uint32 // 0: 0755 for a directory, 0777 for a symlink, else 0644; NoMode: mode 0
	UID  uint32
	GID  uint32
	// MTime is in seconds since 1970, plus Nsec.
	MTime  int64
	Nsec   int32
	Data   string
	Target string
	Major  uint32
	Minor  uint32
	Xattrs map[string]string
	// path of an earlier File: this is another name of it; the other fields are ignored
	Link string
}

// NoMode is the value for the mode 0.
const NoMode = 1 << 31

// Texts returns a list of regular files from a map of paths to contents. A path that ends in a
// slash is a directory.
func Texts(m map[string]string) []File {
	var files []File
	for _, p := range slices.Sorted(maps.Keys(m)) {
		files = append(files, File{Path: p, Data: m[p]})
	}
	return files
}

// Make puts a tree of files into w.
func Make(t testing.TB, w tree.Writer, files ...File) turnstone.TreeRef {
	t.Helper()
	root, err := NewNode(files...)
	if err != nil {
		t.Fatal(err)
	}
	return Build(t, w, root)
}

// Build puts the tree of a file system into w.
func Build(t testing.TB, w tree.Writer, root tree.Node) turnstone.TreeRef {
	t.Helper()
	ref, err := tree.Build(context.Background(), w, root, tree.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// A Node is a file in memory, as a file system would show it. Tests may change its fields, also to
// values that no file system shows.
type Node struct {
	A     tree.Attr
	ID    uint64
	Names uint32
	Kids  []tree.Child
	Data  []byte
	Err   error // returned by all methods
}

// Attr implements tree.Node.
func (n *Node) Attr() (tree.Attr, error) { return n.A, n.Err }

// Inode implements tree.Node.
func (n *Node) Inode() (uint64, uint32) { return n.ID, n.Names }

// Children implements tree.Node.
func (n *Node) Children(context.Context) ([]tree.Child, error) { return n.Kids, n.Err }

// Open implements tree.Node.
func (n *Node) Open() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(n.Data)), n.Err }

// Child returns the child called name, or nil.
func (n *Node) Child(name string) *Node {
	for _, c := range n.Kids {
		if c.Name == name {
			kid, _ := c.Node.(*Node)
			return kid
		}
	}
	return nil
}

// At returns the file at a path below n, or nil.
func (n *Node) At(p string) *Node {
	for name := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if n = n.Child(name); n == nil {
			return nil
		}
	}
	return n
}

// Set adds a child to a directory at its position by name, or replaces the child with that name.
func (n *Node) Set(name string, kid tree.Node) {
	i, there := slices.BinarySearchFunc(n.Kids, name, func(c tree.Child, name string) int {
		return strings.Compare(c.Name, name)
	})
	if there {
		n.Kids[i].Node = kid
		return
	}
	n.Kids = slices.Insert(n.Kids, i, tree.Child{Name: name, Node: kid})
}

// AddXattr adds an extended attribute at its position by name, even if the name exists.
func (n *Node) AddXattr(name, value string) {
	n.A.Xattrs = append(n.A.Xattrs, tree.Xattr{Name: name, Value: []byte(value)})
	slices.SortStableFunc(n.A.Xattrs, func(a, b tree.Xattr) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// NewNode returns the top directory of a file system with files, in any order except that links
// follow their targets.
func NewNode(files ...File) (*Node, error) {
	m := &maker{nodes: map[string]*Node{}}
	root, err := m.dir("/")
	if err != nil {
		return nil, err
	}
	for i := range files {
		if err := m.add(&files[i]); err != nil {
			return nil, fmt.Errorf("treetest: %q: %w", files[i].Path, err)
		}
	}
	for _, n := range m.nodes {
		slices.SortFunc(n.Kids, func(a, b tree.Child) int {
			return strings.Compare(a.Name, b.Name)
		})
	}
	return root, nil
}

type maker struct {
	nodes map[string]*Node // by clean path
	last  uint64
}

func (m *maker) node() *Node {
	m.last++
	return &Node{ID: m.last, Names: 1}
}

func (m *maker) dir(p string) (*Node, error) {
	if n := m.nodes[p]; n != nil {
		if n.A.Type != tree.Dir {
			return nil, errors.New("is below an entry that is not a directory")
		}
		return n, nil
	}
	n := m.node()
	n.A = tree.Attr{Type: tree.Dir, Mode: 0o755}
	return n, m.place(p, n)
}

func (m *maker) place(p string, n *Node) error {
	m.nodes[p] = n
	if p == "/" {
		return nil
	}
	parent, err := m.dir(path.Dir(p))
	if err != nil {
		return err
	}
	parent.Kids = append(parent.Kids, tree.Child{Name: path.Base(p), Node: n})
	return nil
}

func (m *maker) add(f *File) error {
	p := path.Clean("/" + f.Path)
	a := f.attr()
	if a.Type == tree.Dir && f.Link == "" {
		n, err := m.dir(p)
		if err == nil {
			n.A = a
		}
		return err
	}
	if m.nodes[p] != nil {
		return errors.New("is there twice")
	}
	if f.Link != "" {
		n := m.nodes[path.Clean("/"+f.Link)]
		if n == nil || n.A.Type == tree.Dir {
			return fmt.Errorf("there is no file %q before it", f.Link)
		}
		n.Names++
		return m.place(p, n)
	}
	n := m.node()
	n.A, n.Data = a, []byte(f.Data)
	return m.place(p, n)
}

func (f *File) attr() tree.Attr {
	a := tree.Attr{Type: f.Type, Mode: f.Mode, UID: f.UID, GID: f.GID,
		MTime:  tree.Time{Sec: f.MTime, Nsec: f.Nsec},
		Target: f.Target, Major: f.Major, Minor: f.Minor}
	if a.Type == 0 {
		switch {
		case f.Target != "":
			a.Type = tree.Symlink
		case f.Path == "" || strings.HasSuffix(f.Path, "/"):
			a.Type = tree.Dir
		default:
			a.Type = tree.File
		}
	}
	if a.Type == tree.File {
		a.Size = int64(len(f.Data))
	}
	switch {
	case f.Mode == NoMode:
		a.Mode = 0
	case f.Mode == 0 && a.Type == tree.Dir:
		a.Mode = 0o755
	case f.Mode == 0 && a.Type == tree.Symlink:
		a.Mode = 0o777
	case f.Mode == 0:
		a.Mode = 0o644
	}
	for _, k := range slices.Sorted(maps.Keys(f.Xattrs)) {
		a.Xattrs = append(a.Xattrs, tree.Xattr{Name: k, Value: []byte(f.Xattrs[k])})
	}
	return a
}

// List describes a tree with a line for each path, sorted bytewise: all attributes, and the content
// of short files if g is a tree.ContentGetter. Two trees are equal if and only if their lists are,
// where longer files are represented by their digest.
func List(t testing.TB, g tree.Getter, ref turnstone.TreeRef) []string {
	t.Helper()
	ctx := context.Background()
	root, err := tree.GetRoot(ctx, g, ref)
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]string{}
	for _, group := range root.Links {
		for _, p := range group {
			first[p] = group[0]
		}
	}
	var lines []string
	err = tree.Walk(ctx, g, ref, "/", func(p string, e *tree.Entry) error {
		line, err := Line(ctx, g, p, e)
		if to := first[p]; to != "" {
			line += " same as " + to
		}
		lines = append(lines, line)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// Line describes an entry in the format of List, without its hard links.
func Line(ctx context.Context, g tree.Getter, p string, e *tree.Entry) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%c %04o %d:%d @%d.%d %s", "?dflcbp"[min(e.Type, 6)], e.Mode, e.UID, e.GID,
		e.MTime.Sec, e.MTime.Nsec, quoted(p))
	for _, x := range e.Xattrs {
		fmt.Fprintf(&b, " %s=%q", x.Name, x.Value)
	}
	switch e.Type {
	case tree.Symlink:
		fmt.Fprintf(&b, " -> %s", quoted(e.Target))
	case tree.Char, tree.Block:
		fmt.Fprintf(&b, " %d,%d", e.Major, e.Minor)
	case tree.File:
		opener, ok := g.(tree.ContentGetter)
		if !ok || e.Size > 64 {
			fmt.Fprintf(&b, " %d %s", e.Size, e.Content.Digest.Short())
			break
		}
		r, err := opener.OpenContent(ctx, e.Content)
		if err != nil {
			return "", err
		}
		data, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, " %q", data)
	}
	return b.String(), nil
}

// quoted quotes a path that would not be readable otherwise.
func quoted(s string) string {
	if q := fmt.Sprintf("%q", s); q != `"`+s+`"` || strings.Contains(s, " ") {
		return q
	}
	return s
}
