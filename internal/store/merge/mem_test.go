package merge

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// A thing is an entry at a path of a model.
type thing struct {
	attr tree.Attr
	data string
	ino  int // the same number for names of the same file; 0: a single name
}

func (a *thing) same(b *thing) bool { return a.text(false) == b.text(false) }

// text returns the thing in a model's format, without its name and its links.
func (a *thing) text(mtime bool) string {
	if a == nil {
		return "nothing"
	}
	var s string
	mode := uint32(0o644)
	switch a.attr.Type {
	case tree.Dir:
		s, mode = "dir", 0o755
	case tree.File:
		s = strconv.Quote(a.data)
	case tree.Symlink:
		s, mode = "->"+a.attr.Target, 0o777
	case tree.Char:
		s = fmt.Sprintf("char:%d,%d", a.attr.Major, a.attr.Minor)
	case tree.Block:
		s = fmt.Sprintf("block:%d,%d", a.attr.Major, a.attr.Minor)
	case tree.FIFO:
		s = "fifo"
	}
	if a.attr.Mode != mode {
		s += fmt.Sprintf(" mode=%04o", a.attr.Mode)
	}
	if a.attr.UID != 0 {
		s += fmt.Sprintf(" uid=%d", a.attr.UID)
	}
	if a.attr.GID != 0 {
		s += fmt.Sprintf(" gid=%d", a.attr.GID)
	}
	if a.attr.MTime.Sec != 0 && mtime {
		s += fmt.Sprintf(" t=%d", a.attr.MTime.Sec)
	}
	for _, x := range a.attr.Xattrs {
		s += fmt.Sprintf(" x:%s=%s", x.Name, x.Value)
	}
	return s
}

// A model is a tree by paths, "a/b", without the top and without directories that have default
// attributes and are not empty.
type model map[string]*thing

// parse parses a model: lines of a path and its entry.
//
//	a "text\n" mode=0755 uid=1 gid=1 t=7 x:user.note=v
//	b ->target        c char:1,3        d block:8,0        e fifo        f dir
//	g =a              (another name of a)
func parse(t testing.TB, src string) model {
	t.Helper()
	m := model{}
	inos := 0
	for line := range strings.SplitSeq(src, "\n") {
		line = strings.TrimSpace(line)
		name, rest, _ := strings.Cut(line, " ")
		if name == "" {
			continue
		}
		if to, ok := strings.CutPrefix(rest, "="); ok {
			if m[to].ino == 0 {
				inos++
				m[to].ino = inos
			}
			m[name] = m[to]
			continue
		}
		th := &thing{attr: tree.Attr{Type: tree.File, Mode: 0o644}}
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			th.data, _ = strconv.Unquote(quoted)
			rest = rest[len(quoted):]
		}
		for _, word := range strings.Fields(rest) {
			parseWord(t, th, word)
		}
		m[name] = th
	}
	return m
}

func parseWord(t testing.TB, th *thing, word string) {
	t.Helper()
	number := func(s string, base int) uint32 {
		n, err := strconv.ParseUint(s, base, 32)
		if err != nil {
			t.Fatalf("%q: %v", word, err)
		}
		return uint32(n)
	}
	key, value, _ := strings.Cut(word, "=")
	kind, numbers, _ := strings.Cut(word, ":")
	switch {
	case strings.HasPrefix(word, "->"):
		th.attr.Type, th.attr.Mode, th.attr.Target = tree.Symlink, 0o777, word[2:]
	case kind == "char", kind == "block":
		th.attr.Type = map[string]tree.Type{"char": tree.Char, "block": tree.Block}[kind]
		major, minor, _ := strings.Cut(numbers, ",")
		th.attr.Major, th.attr.Minor = number(major, 10), number(minor, 10)
	case word == "fifo":
		th.attr.Type = tree.FIFO
	case word == "dir":
		th.attr.Type, th.attr.Mode = tree.Dir, 0o755
	case key == "mode":
		th.attr.Mode = number(value, 8)
	case key == "uid":
		th.attr.UID = number(value, 10)
	case key == "gid":
		th.attr.GID = number(value, 10)
	case key == "t":
		th.attr.MTime.Sec = int64(number(value, 10))
	case kind == "x":
		th.attr.Xattrs = append(th.attr.Xattrs,
			tree.Xattr{Name: strings.TrimPrefix(key, "x:"), Value: []byte(value)})
	default:
		t.Fatalf("what is %q?", word)
	}
}

// String returns a model in the format of parse, sorted.
func (m model) String() string {
	var lines []string
	first := map[int]string{}
	for _, p := range slices.Sorted(maps.Keys(m)) {
		th := m[p]
		if to := first[th.ino]; th.ino != 0 && to != "" {
			lines = append(lines, p+" ="+to)
			continue
		}
		first[th.ino] = p
		lines = append(lines, p+" "+th.text(true))
	}
	return strings.Join(lines, "\n")
}

// put puts the tree of m.
func (m model) put(t testing.TB, w tree.Writer) turnstone.TreeRef {
	t.Helper()
	var files []treetest.File
	first := map[int]string{}
	for _, p := range slices.Sorted(maps.Keys(m)) {
		th := m[p]
		f := th.file(p)
		if th.ino != 0 {
			if f.Link = first[th.ino]; f.Link == "" {
				first[th.ino] = p
			}
		}
		files = append(files, f)
	}
	return treetest.Make(t, w, files...)
}

func (a *thing) file(p string) treetest.File {
	f := treetest.File{Path: p, Type: a.attr.Type, Mode: a.attr.Mode,
		UID: a.attr.UID, GID: a.attr.GID,
		MTime: a.attr.MTime.Sec, Nsec: a.attr.MTime.Nsec, Data: a.data, Target: a.attr.Target,
		Major: a.attr.Major, Minor: a.attr.Minor, Xattrs: map[string]string{}}
	if f.Mode == 0 {
		f.Mode = treetest.NoMode
	}
	for _, x := range a.attr.Xattrs {
		f.Xattrs[x.Name] = string(x.Value)
	}
	return f
}

// load returns the model of a tree, and checks that its links are consistent.
func load(t testing.TB, w Store, ref turnstone.TreeRef) model {
	t.Helper()
	m := model{}
	entries := map[string]*tree.Entry{}
	err := tree.Walk(t.Context(), w, ref, "/", func(p string, e *tree.Entry) error {
		c := *e
		entries[p] = &c
		th := &thing{attr: e.Attr}
		th.attr.Size = 0
		if e.Type == tree.File {
			th.data = content(t, w, p, e)
		}
		m[p[1:]] = th
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m.links(t, w, ref, entries)
	delete(m, "")
	for _, p := range slices.Sorted(maps.Keys(m)) {
		d := path.Dir(p)
		if th := m[d]; th != nil && th.text(true) == "dir" && th.attr.MTime.Nsec == 0 {
			delete(m, d)
		}
	}
	return m
}

func content(t testing.TB, w Store, p string, e *tree.Entry) string {
	t.Helper()
	r, err := w.OpenContent(t.Context(), e.Content)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != e.Size || e.Content.Size != e.Size {
		t.Errorf("%s: sizes %d, %d, %d", p, len(b), e.Size, e.Content.Size)
	}
	return string(b)
}

// links records the hard links of a tree, and checks them.
func (m model) links(t testing.TB, w Store, ref turnstone.TreeRef, entries map[string]*tree.Entry) {
	t.Helper()
	root, err := tree.GetRoot(t.Context(), w, ref)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range root.Links {
		if len(g) < 2 || !slices.IsSorted(g) {
			t.Errorf("links %q", g)
		}
		for _, p := range g {
			e, ok := entries[p]
			if !ok {
				t.Fatalf("links %q: %s is not there", g, p)
			}
			a, b := &node{Entry: *e}, &node{Entry: *entries[g[0]]}
			if !identical(a, b) {
				t.Fatalf("links %q: %s differs", g, p)
			}
			th := m[p[1:]]
			if th.ino != 0 {
				t.Fatalf("links: %s is in two groups", p)
			}
			th.ino = i + 1
		}
	}
}
