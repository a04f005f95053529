package upperdir_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// FuzzExport is FuzzRead with streams whose headers are well-formed, which random changes never
// produce: a tar header has a checksum. Each eight bytes of the input are an entry of a hostile
// agent. The result is applied to a tree, as at a turn's end.
func FuzzExport(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 2, 9, 1, 1, 0, 0, 0}, false)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 4, 8, 16, 3, 0, 0, 1, 1, 4, 9, 32, 3, 5, 0, 2,
		2, 0, 1, 0, 0, 0, 0}, true)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 7, 7, 7, 0, 0, 3, 4, 0, 2, 64, 0, 1, 1, 6,
		3, 0, 0, 0, 0, 0, 0}, false)
	folder := f.TempDir()
	w := treetest.NewStore()
	parent := treetest.Make(f, w,
		treetest.Texts(map[string]string{"/a/a": "1", "/a/b/c": "2", "/b": "3"})...)
	f.Fuzz(func(t *testing.T, in []byte, cut bool) {
		s := hostileExport(in)
		if cut && len(in) > 0 {
			s = s[:len(s)*int(in[0]+1)/257]
		}
		const entries, most = 40, 1 << 16
		u, err := upperdir.Read(t.Context(), bytes.NewReader(s), folder,
			upperdir.Options{Bytes: most, Holes: most, Entries: entries, Meta: 1 << 14})
		if err != nil {
			var te *turnstone.Error
			if !errors.As(err, &te) || te.Hint == "" || te.Kind != turnstone.KindIntegrity &&
				te.Kind != turnstone.KindExhausted {
				t.Fatalf("%v", err)
			}
			return
		}
		defer func() { _ = u.Close() }()
		if cut && len(in) > 0 && len(s) < 1024 {
			t.Fatalf("%d bytes were taken", len(s))
		}
		seen, data := 0, int64(0)
		var walk func(n tree.Node, depth int)
		walk = func(n tree.Node, depth int) {
			a, err := n.Attr()
			must(t, err)
			if seen++; a.Type == tree.File {
				f, err := n.Open()
				must(t, err)
				k, err := io.Copy(io.Discard, f)
				must(t, errors.Join(err, f.Close()))
				if data += k; k != a.Size {
					t.Fatalf("%d bytes of %d", k, a.Size)
				}
			}
			if a.Type != tree.Dir {
				return
			}
			kids, err := n.Children(t.Context())
			must(t, err)
			for i, k := range kids {
				if tree.CheckName(k.Name) != nil ||
					i > 0 && k.Name <= kids[i-1].Name || depth > tree.MaxDepth {
					t.Fatalf("%q", k.Name)
				}
				walk(k.Node, depth+1)
			}
		}
		walk(u.Root(), 0)
		if seen > entries || data > entries*2*most {
			t.Fatalf("%d entries, %d bytes", seen, data)
		}
		ref, _, err := layer.Apply(t.Context(), w, parent, u.Root(), layer.Options{Parallel: 1})
		if err != nil {
			return
		}
		if err := tree.Walk(t.Context(), w, ref, "/",
			func(string, *tree.Entry) error { return nil }); err != nil {
			t.Errorf("what was made cannot be read: %v", err)
		}
	})
}

// hostileExport makes a stream of bytes: entries with names, types, records and data that may
// contradict each other.
func hostileExport(in []byte) []byte {
	names := []string{"./", "a/", "a", "a/a", "b", "a/b/", "a/b/c", "..", "a/../b", "/etc", "",
		"a//b", strings.Repeat("n", 256), "a/\x00"}
	kinds := []byte{tar.TypeDir, tar.TypeReg, tar.TypeLink, tar.TypeSymlink, tar.TypeChar,
		tar.TypeBlock, tar.TypeFifo, tar.TypeCont, tar.TypeXGlobalHeader}
	numbers := []string{"0", "1", "8", "-1", "65536", "4611686018427387904",
		"9223372036854775808", "x", ""}
	parts := []string{"0,1", "0,1,5,2", "5,2", "1,0", "0,1,0,1",
		"4611686018427387903,1", "0", "", ",", "0,8,8,8"}
	xattrs := []string{"SCHILY.xattr.user.x", "SCHILY.xattr.trusted.overlay.opaque",
		"TURNSTONE.xattr.757365722e79", "TURNSTONE.xattr.zz", "SCHILY.xattr.", "GNU.sparse.size",
		"SCHILY.xattr.trusted.overlay.redirect"}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	pick := func(list []string, i byte) string { return list[int(i)%len(list)] }
	for first := true; len(in) >= 8; in = in[8:] {
		h := &tar.Header{Format: tar.FormatPAX, Name: pick(names, in[0]),
			Typeflag: kinds[int(in[1])%len(kinds)], Mode: int64(in[2]) << 5,
			ModTime: time.Unix(int64(in[3])-9, int64(in[3])), PAXRecords: map[string]string{}}
		if first {
			h.Name, h.Typeflag, first = "./", tar.TypeDir, false
		}
		switch h.Typeflag {
		case tar.TypeReg:
			h.Size = int64(in[5] % 32)
		case tar.TypeLink, tar.TypeSymlink:
			h.Linkname = pick(names, in[5])
		case tar.TypeChar, tar.TypeBlock:
			h.Devmajor, h.Devminor = int64(in[5])<<(in[6]%24), int64(in[6])
		}
		h.Uid, h.Gid = int(in[6])<<(in[7]%32), int(in[7])
		for i, set := range []func(){
			func() { h.PAXRecords["TURNSTONE.links"] = pick(numbers, in[5]) },
			func() { h.PAXRecords["TURNSTONE.size"] = pick(numbers, in[6]) },
			func() { h.PAXRecords["TURNSTONE.sparse"] = pick(parts, in[6]) },
			func() { h.PAXRecords["TURNSTONE.more"] = pick(parts, in[5]) },
			func() { h.PAXRecords[pick(xattrs, in[5])] = strings.Repeat("y", int(in[6])) },
			func() { h.PAXRecords[pick(xattrs, in[7])] = "z" },
		} {
			if in[4]>>i&1 == 1 {
				set()
			}
		}
		if w.WriteHeader(h) == nil {
			_, _ = w.Write(bytes.Repeat([]byte{in[7]}, int(h.Size)))
		}
	}
	_ = w.Close()
	return b.Bytes()
}
