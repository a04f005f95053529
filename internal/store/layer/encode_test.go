package layer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// flat is a tree with a line for each path that contains everything that a layer stores.
func flat(t testing.TB, r tree.Getter, ref turnstone.TreeRef) map[string]string {
	root, err := tree.GetRoot(t.Context(), r, ref)
	must(t, err)
	first := map[string]string{}
	for _, g := range root.Links {
		for _, p := range g {
			first[p] = g[0]
		}
	}
	out := map[string]string{}
	var walk func(path string, e *tree.Entry)
	walk = func(path string, e *tree.Entry) {
		sum := ""
		if e.Type == tree.File {
			sum = e.Content.Digest.Hex()
		}
		out[path] = fmt.Sprintf("%+v %s %q", e.Attr, sum, first[path])
		if e.Type != tree.Dir {
			return
		}
		d, err := tree.GetDirectory(t.Context(), r, e.Tree)
		must(t, err)
		for i := range d {
			walk(strings.TrimSuffix(path, "/")+"/"+d[i].Name, &d[i])
		}
	}
	walk("/", &root.Entry)
	return out
}

// decode applies an encoded layer to a tree, by the format's description.
func decode(b []byte, onto map[string]string) (map[string]string, error) {
	out := maps.Clone(onto)
	if len(b) == 0 {
		return out, nil
	}
	b, ok := bytes.CutPrefix(b, []byte("turnstone-layer\x001"))
	if !ok {
		return nil, errors.New("no layer")
	}
	num := func() uint64 {
		n, k := binary.Uvarint(b)
		b = b[k:]
		return n
	}
	text := func() string {
		n := num()
		s := string(b[:n])
		b = b[n:]
		return s
	}
	last := ""
	for {
		op := b[0]
		if b = b[1:]; op == 0 {
			break
		}
		path := text()
		if path <= last {
			return nil, fmt.Errorf("%q after %q", path, last)
		}
		last = path
		isDir := op == 2 && tree.Type(b[0]) == tree.Dir
		if !isDir {
			for p := range out {
				if p == path || strings.HasPrefix(p, path+"/") {
					delete(out, p)
				}
			}
		}
		if op != 2 {
			continue
		}
		a := tree.Attr{Type: tree.Type(b[0])}
		b = b[1:]
		a.Mode, a.UID, a.GID = uint32(num()), uint32(num()), uint32(num())
		sec, k := binary.Varint(b)
		b = b[k:]
		a.MTime = tree.Time{Sec: sec, Nsec: int32(num())}
		sum := ""
		switch a.Type {
		case tree.File:
			a.Size = int64(num())
			sum = fmt.Sprintf("%x", b[:32])
			b = b[32:]
		case tree.Symlink:
			a.Target = text()
		case tree.Char, tree.Block:
			a.Major, a.Minor = uint32(num()), uint32(num())
		}
		for range num() {
			a.Xattrs = append(a.Xattrs, tree.Xattr{Name: text(), Value: []byte(text())})
		}
		out[path] = fmt.Sprintf("%+v %s %q", a, sum, text())
	}
	if len(b) > 0 {
		return nil, errors.New("something follows the end")
	}
	return out, nil
}

// difference compares two flat trees.
func difference(got, want map[string]string) string {
	var out []string
	for p := range maps.Keys(got) {
		if got[p] != want[p] {
			out = append(out, "got  "+p+" "+got[p], "want "+p+" "+want[p])
		}
	}
	for p := range want {
		if _, ok := got[p]; !ok {
			out = append(out, "missing "+p+" "+want[p])
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// The bytes of a layer and its digest do not change between versions.
func TestEncodingIsTheSameForEver(t *testing.T) {
	w := treetest.NewStore()
	before := build(t, w, files(map[string]string{"/a/x": "1", "/a-b": "2", "/gone/y/z": "3",
		"/same": "4", "/was": "5"}))
	after := files(map[string]string{"/a/x": "changed", "/a/new": "", "/link": "->a/x",
		"/same": "4", "/was/now/dir": ""})
	after.At("/a/x").AddXattr("user.note", "v")
	after.Set("other", after.At("/a/x"))
	after.At("/a/x").Names = 2
	after.Set("device", &treetest.Node{A: tree.Attr{Type: tree.Block, Mode: 0o660, GID: 6, Major: 8,
		Minor: 1, MTime: tree.Time{Sec: -1}}, ID: 999, Names: 1})
	ref := build(t, w, after)
	var b bytes.Buffer
	must(t, layer.Encode(t.Context(), w, before, ref, &b))
	got, err := decode(b.Bytes(), flat(t, w, before))
	must(t, err)
	if diff := difference(got, flat(t, w, ref)); diff != "" {
		t.Errorf("the layer does not lead there:\n%s", diff)
	}
	d, err := layer.Digest(t.Context(), w, before, ref)
	must(t, err)
	const want = turnstone.Digest(
		"sha256:240503bee33abf4d45885f15a9f263093f090f5eb42597c792b8820d0b2770f2")
	if d != turnstone.DigestBytes(b.Bytes()) || d != want {
		t.Errorf("digest %s, want %s:\n%q", d, want, b.Bytes())
	}
	if d, err := layer.Digest(t.Context(), w, ref, ref); d != "" || err != nil {
		t.Errorf("of nothing: %q, %v", d, err)
	}
}
