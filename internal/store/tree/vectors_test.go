package tree_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"sort"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

var update = flag.Bool("update", false,
	"write testdata/fs-hash.json anew, with the files that are in this test")

// A vector is a tree and its FS hash as defined in docs/fs-hash.md.
type vector struct {
	Name  string           `json:"name"`
	Files []vectorFile     `json:"files"`
	Hash  turnstone.Digest `json:"fs_hash"`
}

type vectorFile struct {
	Path    string            `json:"path"`
	Link    string            `json:"link,omitempty"`
	Type    string            `json:"type,omitempty"`
	Mode    *uint32           `json:"mode,omitempty"`
	UID     *uint32           `json:"uid,omitempty"`
	GID     *uint32           `json:"gid,omitempty"`
	Content string            `json:"content,omitempty"`
	Target  string            `json:"target,omitempty"`
	Major   uint32            `json:"major,omitempty"`
	Minor   uint32            `json:"minor,omitempty"`
	Xattrs  map[string]string `json:"xattrs,omitempty"`
	MTime   int64             `json:"mtime,omitempty"`
}

var typeNames = map[string]tree.Type{"dir": tree.Dir, "file": tree.File, "symlink": tree.Symlink,
	"char": tree.Char, "block": tree.Block, "fifo": tree.FIFO}

func unhex(t testing.TB, s string) string {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (v *vector) list(t testing.TB) []treetest.File {
	var out []treetest.File
	for _, f := range v.Files {
		g := treetest.File{Path: unhex(t, f.Path), Link: unhex(t, f.Link)}
		if g.Link == "" {
			g.Type, g.Mode, g.UID, g.GID = typeNames[f.Type], *f.Mode, *f.UID, *f.GID
			g.Data, g.Target, g.Major, g.Minor, g.MTime = unhex(t, f.Content),
				unhex(t, f.Target), f.Major, f.Minor, f.MTime
			if g.Mode == 0 {
				g.Mode = treetest.NoMode
			}
			g.Xattrs = map[string]string{}
			for k, x := range f.Xattrs {
				g.Xattrs[unhex(t, k)] = unhex(t, x)
			}
		}
		out = append(out, g)
	}
	return out
}

func TestVectors(t *testing.T) {
	const file = "testdata/fs-hash.json"
	if *update {
		writeVectors(t, file)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 8 {
		t.Fatalf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		files := v.list(t)
		if got := treetest.Make(t, treetest.NewStore(), files...).Hash; got != v.Hash {
			t.Errorf("%s: %s, want %s", v.Name, got, v.Hash)
		}
		if got := reference(files); got != v.Hash {
			t.Errorf("%s: the reference says %s, want %s", v.Name, got, v.Hash)
		}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the second implementation needs python3")
	}
	out, err := exec.Command(python, "testdata/fs_hash.py", file).CombinedOutput()
	if want := fmt.Sprintf("%d of %d vectors agree\n", len(vectors), len(vectors)); err != nil ||
		string(out) != want {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestHashIsWhatTheReferenceSays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := treetest.Files().Draw(rt, "files")
		ref := treetest.Make(t, treetest.NewStore(), files...)
		if want := reference(files); ref.Hash != want {
			rt.Fatalf("%s, want %s", ref.Hash, want)
		}
	})
}

// reference computes the FS hash of a list of files from docs/fs-hash.md alone: it shares only type
// names with the package.
func reference(files []treetest.File) turnstone.Digest {
	byPath, groups := written(files)
	all := slices.Concat([]byte("turnstone fs root 1\n"), referenceNode(byPath, "/"),
		u32(0), u32(uint32(len(groups))))
	var table [][]string
	for to, others := range groups {
		g := append([]string{to}, others...)
		sort.Strings(g)
		table = append(table, g)
	}
	slices.SortFunc(table, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	for _, g := range table {
		all = append(all, u32(uint32(len(g)))...)
		for _, p := range g {
			all = append(all, text(p)...)
		}
	}
	return turnstone.DigestBytes(all)
}

func u32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func text(s string) []byte { return append(u32(uint32(len(s))), s...) }

// written returns the entries by path, and additional names of files by their first name.
func written(files []treetest.File) (byPath map[string]treetest.File, groups map[string][]string) {
	byPath = map[string]treetest.File{"/": {Path: "/", Type: tree.Dir}}
	first := map[string]string{}
	groups = map[string][]string{}
	for _, f := range files {
		p := path.Clean("/" + f.Path)
		for dir := path.Dir(p); byPath[dir].Path == ""; dir = path.Dir(dir) {
			byPath[dir] = treetest.File{Path: dir, Type: tree.Dir}
		}
		if f.Link != "" {
			to := path.Clean("/" + f.Link)
			for first[to] != "" {
				to = first[to]
			}
			first[p] = to
			groups[to] = append(groups[to], p)
			f = byPath[to]
		}
		if f.Type == 0 {
			f.Type = tree.File
			if f.Target != "" {
				f.Type = tree.Symlink
			} else if strings.HasSuffix(f.Path, "/") {
				f.Type = tree.Dir
			}
		}
		f.Path = p
		byPath[p] = f
	}
	return byPath, groups
}

// referenceNode is the directory entry for p.
func referenceNode(byPath map[string]treetest.File, p string) []byte {
	f := byPath[p]
	mode := map[tree.Type]uint32{tree.Dir: 0o755, tree.Symlink: 0o777}[f.Type]
	switch {
	case f.Type == tree.Symlink:
	case f.Mode == treetest.NoMode:
		mode = 0
	case f.Mode != 0:
		mode = f.Mode
	case mode == 0:
		mode = 0o644
	}
	out := slices.Concat([]byte{byte(f.Type)}, u32(mode), u32(f.UID), u32(f.GID))
	var names []string
	for k := range f.Xattrs {
		if strings.HasPrefix(k, "user.") || k == "security.capability" {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	out = append(out, u32(uint32(len(names)))...)
	for _, k := range names {
		out = slices.Concat(out, text(k), text(f.Xattrs[k]))
	}
	switch f.Type {
	case tree.Dir:
		h := []byte("turnstone fs dir 1\n")
		var kids []string
		for k := range byPath {
			if k != "/" && path.Dir(k) == p {
				kids = append(kids, path.Base(k))
			}
		}
		sort.Strings(kids)
		for _, k := range kids {
			h = slices.Concat(h, text(k), referenceNode(byPath, path.Join(p, k)))
		}
		sum := sha256.Sum256(h)
		out = append(out, sum[:]...)
	case tree.File:
		sum := sha256.Sum256([]byte(f.Data))
		out = slices.Concat(out, u32(0), u32(uint32(len(f.Data))), sum[:])
	case tree.Symlink:
		out = append(out, text(f.Target)...)
	case tree.Char, tree.Block:
		out = slices.Concat(out, u32(f.Major), u32(f.Minor))
	}
	return out
}

// writeVectors writes the vectors with the hashes of the reference.
func writeVectors(t *testing.T, file string) {
	t.Helper()
	sets := []struct {
		name  string
		files []treetest.File
	}{
		{"an empty directory", []treetest.File{{Path: "/"}}},
		{"one file", []treetest.File{{Path: "/"}, {Path: "/hello", Data: "hello\n"}}},
		{"an empty file of nobody, without permissions",
			[]treetest.File{{Path: "/", Mode: 0o700, UID: 65534},
				{Path: "/f", Mode: treetest.NoMode, UID: 65534, GID: 65534}}},
		{"directories in each other, and order around the slash",
			[]treetest.File{{Path: "/"}, {Path: "/a/"}, {Path: "/a-b", Data: "-"}, {Path: "/a/b/"},
				{Path: "/a/b/c", Data: "c"}, {Path: "/a.b", Data: "."}, {Path: "/a0", Data: "0"}}},
		{"times make no difference: as one file",
			[]treetest.File{{Path: "/", MTime: 1}, {Path: "/hello", Data: "hello\n", MTime: -5}}},
		{"every type", []treetest.File{{Path: "/"}, {Path: "/s", Target: "../else where"},
			{Path: "/c", Type: tree.Char, Mode: 0o620, Major: 4, Minor: 1048575, GID: 5},
			{Path: "/b", Type: tree.Block, Mode: 0o660, Major: 4095},
			{Path: "/p", Type: tree.FIFO, Mode: 0o622}, {Path: "/f", Mode: 0o4755, Data: "\x00"},
			{Path: "/d/", Mode: 0o1777}}},
		{"names that are not UTF-8, and a long one",
			[]treetest.File{{Path: "/"}, {Path: "/\xff\xfe"}, {Path: "/\x01\n"},
				{Path: "/" + strings.Repeat("n", 255)}}},
		{"extended attributes",
			[]treetest.File{{Path: "/", Xattrs: map[string]string{"user.top": "1"}},
				{Path: "/f", Xattrs: map[string]string{"user.b": "\x00\xff", "user.a": "",
					"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "trusted.not": "covered", "system.posix_acl_access": "not covered"}}}},
		{"hard links", []treetest.File{{Path: "/"}, {Path: "/d/"}, {Path: "/z", Data: "one"},
			{Path: "/d/y", Link: "/z"}, {Path: "/a", Link: "/d/y"},
			{Path: "/s1", Target: "x"}, {Path: "/d/s2", Link: "/s1"},
			{Path: "/copy", Data: "one"}}},
		{"a file of 5000 bytes", []treetest.File{{Path: "/"},
			{Path: "/f", Data: strings.Repeat("0123456789", 500)}}},
	}
	var out []vector
	for _, set := range sets {
		node, err := treetest.NewNode(set.files...)
		if err != nil {
			t.Fatal(err)
		}
		v := vector{Name: set.name, Hash: reference(set.files)}
		flatten(t, &v, "/", node, map[*treetest.Node]string{})
		out = append(out, v)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	if err := enc.Encode(out); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func flatten(t *testing.T, v *vector, p string, n *treetest.Node, seen map[*treetest.Node]string) {
	h := func(s string) string { return hex.EncodeToString([]byte(s)) }
	if at := seen[n]; at != "" {
		v.Files = append(v.Files, vectorFile{Path: h(p), Link: h(at)})
		return
	}
	seen[n] = p
	f := vectorFile{Path: h(p), Mode: &n.A.Mode, UID: &n.A.UID, GID: &n.A.GID,
		Content: hex.EncodeToString(n.Data), Target: h(n.A.Target),
		Major: n.A.Major, Minor: n.A.Minor, MTime: n.A.MTime.Sec}
	for name, typ := range typeNames {
		if typ == n.A.Type {
			f.Type = name
		}
	}
	for _, x := range n.A.Xattrs {
		if f.Xattrs == nil {
			f.Xattrs = map[string]string{}
		}
		f.Xattrs[h(x.Name)] = hex.EncodeToString(x.Value)
	}
	v.Files = append(v.Files, f)
	kids, err := n.Children(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kids {
		kid, _ := k.Node.(*treetest.Node)
		flatten(t, v, path.Join(p, k.Name), kid, seen)
	}
}
