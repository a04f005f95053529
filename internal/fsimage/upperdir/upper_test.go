package upperdir_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/testsize"
)

// An entry is an entry of a stream.
type entry struct {
	tar.Header
	data string
}

func dir(name string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}
func file(name, data string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, data: data}
}
func link(name, to string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}}
}

func (e entry) with(records ...string) entry {
	e.PAXRecords = map[string]string{}
	for i := 0; i < len(records); i += 2 {
		e.PAXRecords[records[i]] = records[i+1]
	}
	return e
}

func stream(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Format, h.Size = tar.FormatPAX, int64(len(e.data))
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1, 5)
		}
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, e.data)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// all reads a tree's files, by path.
func all(t testing.TB, n tree.Node) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(path string, n tree.Node)
	walk = func(path string, n tree.Node) {
		a, err := n.Attr()
		must(t, err)
		id, names := n.Inode()
		switch a.Type {
		case tree.Dir:
			kids, err := n.Children(t.Context())
			must(t, err)
			for _, k := range kids {
				walk(path+"/"+k.Name, k.Node)
			}
			return
		case tree.File:
			f, err := n.Open()
			must(t, err)
			b, err := io.ReadAll(f)
			must(t, errors.Join(err, f.Close()))
			if int64(len(b)) != a.Size {
				t.Errorf("%s has %d bytes of %d", path, len(b), a.Size)
			}
			out[path] = string(b)
		default:
			out[path] = fmt.Sprint(a.Type, " ", a.Target, a.Major, "/", a.Minor)
		}
		if names > 1 {
			out[path] += fmt.Sprintf(" (%d of %d)", id, names)
		}
		for _, x := range a.Xattrs {
			out[path] += fmt.Sprintf(" %s=%s", x.Name, x.Value)
		}
	}
	walk("", n)
	return out
}

func TestRead(t *testing.T) {
	s := stream(t, dir("./"),
		file("z", "last"), dir("a/"), file("a/f", "data").with("TURNSTONE.links", "2"),
		dir("a/b/"), link("a/b/g", "a/f"),
		file("a/sparse", "xxyy").with("TURNSTONE.size", "10", "TURNSTONE.sparse", "1,2,4,1,5,1"),
		file("a/parts", "ab").with("TURNSTONE.size", "8", "TURNSTONE.sparse", "0,2"),
		file("a/parts", "cd").with("TURNSTONE.more", "2,2"),
		file("a/parts", "e").with("TURNSTONE.more", "7,1"),
		file("a/hole", "").with("TURNSTONE.size", "3", "TURNSTONE.sparse", ""),
		file("x", "").with("SCHILY.xattr.user.b", "2", "TURNSTONE.xattr.757365722e613d62", "1"),
		entry{Header: tar.Header{Name: "w", Typeflag: tar.TypeChar}},
		entry{Header: tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/a"}},
		entry{Header: tar.Header{Name: "blk", Typeflag: tar.TypeBlock,
			Devmajor: 4095, Devminor: 1<<20 - 1}})
	for _, r := range []io.Reader{bytes.NewReader(s), iotest.OneByteReader(bytes.NewReader(s)),
		iotest.DataErrReader(bytes.NewReader(s))} {
		u, err := upperdir.Read(t.Context(), r, t.TempDir(), upperdir.Options{})
		must(t, err)
		got := all(t, u.Root())
		want := map[string]string{"/z": "last", "/a/f": "data (4 of 2)", "/a/b/g": "data (4 of 2)",
			"/a/sparse": "\x00xx\x00yy\x00\x00\x00\x00",
			"/a/parts":  "abcd\x00\x00\x00e", "/a/hole": "\x00\x00\x00",
			"/x": " user.a=b=1 user.b=2", "/w": "4 0/0", "/l": "3 /a0/0", "/blk": "5 4095/1048575"}
		for p, w := range want {
			if got[p] != w {
				t.Errorf("%s: %q, want %q", p, got[p], w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%q", got)
		}
		must(t, u.Close())
	}
}

// A file can be read at several offsets concurrently.
func TestReadAt(t *testing.T) {
	s := stream(t, dir("./"), file("f", "abcdef").with("TURNSTONE.size", "12",
		"TURNSTONE.sparse", "2,2,6,4"))
	u, err := upperdir.Read(t.Context(), bytes.NewReader(s), t.TempDir(), upperdir.Options{})
	must(t, err)
	defer func() { _ = u.Close() }()
	kids, err := u.Root().Children(t.Context())
	must(t, err)
	f, err := kids[0].Node.Open()
	must(t, err)
	want := "\x00\x00ab\x00\x00cdef\x00\x00"
	at, ok := f.(io.ReaderAt)
	if !ok {
		t.Fatal("no io.ReaderAt")
	}
	must(t, iotest.TestReader(io.NewSectionReader(at, 0, 12), []byte(want)))
}

func kind(t *testing.T, s []byte, opts upperdir.Options) (turnstone.Kind, error) {
	t.Helper()
	u, err := upperdir.Read(t.Context(), bytes.NewReader(s), t.TempDir(), opts)
	if err == nil {
		must(t, u.Close())
	}
	return turnstone.KindOf(err), err
}

// A stream that no agent writes is an error of kind Integrity.
func TestHostile(t *testing.T) {
	deep := []entry{dir("./")}
	for i := range 4200 {
		deep = append(deep, dir(strings.Repeat("d/", i+1)))
	}
	for name, s := range map[string][]byte{
		"nothing":             stream(t),
		"no top":              stream(t, dir("a/")),
		"two tops":            stream(t, dir("./"), dir("./")),
		"absolute":            stream(t, dir("./"), file("/etc/passwd", "x")),
		"above":               stream(t, dir("./"), file("../x", "x")),
		"above in the middle": stream(t, dir("./"), dir("a/"), file("a/../../x", "x")),
		"dot":                 stream(t, dir("./"), file("./x", "x")),
		"no directory":        stream(t, dir("./"), file("a/x", "x")),
		"below a file":        stream(t, dir("./"), file("a", "x"), file("a/x", "x")),
		"below a link": stream(t, dir("./"),
			entry{Header: tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/"}},
			file("a/x", "x")),
		"left directory": stream(t, dir("./"), dir("a/"), dir("b/"), file("a/x", "x")),
		"twice": stream(t, dir("./"), file("a", "x"),
			file("b", "x"), file("a", "x")),
		"twice, a directory": stream(t, dir("./"), dir("a/"), file("a", "x")),
		"long name":          stream(t, dir("./"), file(strings.Repeat("n", 256), "x")),
		"link to nowhere":    stream(t, dir("./"), link("a", "b")),
		"link to one":        stream(t, dir("./"), file("b", "x"), link("a", "b")),
		"link to a directory": stream(t, dir("./"),
			dir("b/").with("TURNSTONE.links", "2"), link("a", "b/")),
		"link to itself": stream(t, dir("./"), link("a", "a")),
		"empty target": stream(t, dir("./"),
			entry{Header: tar.Header{Name: "a", Typeflag: tar.TypeSymlink}}),
		"long target": stream(t, dir("./"),
			entry{Header: tar.Header{Name: "a", Typeflag: tar.TypeSymlink,
				Linkname: strings.Repeat("x", 5000)}}),
		"device": stream(t, dir("./"),
			entry{Header: tar.Header{Name: "a", Typeflag: tar.TypeChar, Devmajor: 4096}}),
		"attribute": stream(t, dir("./"), file("a", "").with("TURNSTONE.xattr.zz", "1")),
		"attribute twice": stream(t, dir("./"),
			file("a", "").with("TURNSTONE.xattr.757365722e61", "1", "SCHILY.xattr.user.a", "2")),
		"owner": stream(t, dir("./"),
			entry{Header: tar.Header{Name: "a", Typeflag: tar.TypeReg, Uid: 1 << 32}}),
		"more of nothing": stream(t, dir("./"), file("a", "x").with("TURNSTONE.more", "0,1")),
		"more of another": stream(t, dir("./"),
			file("a", "").with("TURNSTONE.size", "9", "TURNSTONE.sparse", ""),
			file("b", "x").with("TURNSTONE.more", "0,1")),
		"more of a whole file": stream(t, dir("./"), file("a", "x"),
			file("a", "x").with("TURNSTONE.more", "1,1")),
		"more of a directory": stream(t, dir("./"), dir("a/"),
			dir("a/").with("TURNSTONE.more", "1,1")),
		"sparse, no size": stream(t, dir("./"),
			file("a", "x").with("TURNSTONE.sparse", "0,1")),
		"sparse, size": stream(t, dir("./"),
			file("a", "x").with("TURNSTONE.size", "-5", "TURNSTONE.sparse", "0,1")),
		"part beyond": stream(t, dir("./"),
			file("a", "xx").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "4,2")),
		"part far beyond": stream(t, dir("./"),
			file("a", "xx").with("TURNSTONE.size", "5", "TURNSTONE.sparse",
				"4611686018427387904,2")),
		"part twice": stream(t, dir("./"),
			file("a", "xx").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "0,1,0,1")),
		"part backwards": stream(t, dir("./"),
			file("a", "xx").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "3,1,1,1")),
		"part of nothing": stream(t, dir("./"),
			file("a", "").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "0,0")),
		"part without data": stream(t, dir("./"),
			file("a", "x").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "0,2")),
		"data without part": stream(t, dir("./"),
			file("a", "xx").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "0,1")),
		"odd list": stream(t, dir("./"),
			file("a", "x").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "0")),
		"no numbers": stream(t, dir("./"),
			file("a", "x").with("TURNSTONE.size", "5", "TURNSTONE.sparse", ",")),
		"behind the end": append(stream(t, dir("./")), 1),
		"two streams":    append(stream(t, dir("./")), stream(t, dir("./"))...),
		"no tar":         bytes.Repeat([]byte("x"), 4096),
	} {
		t.Run(name, func(t *testing.T) {
			if k, err := kind(t, s, upperdir.Options{}); k != turnstone.KindIntegrity {
				t.Errorf("%v: %v", k, err)
			}
		})
	}
	t.Run("deep", func(t *testing.T) {
		if k, err := kind(t, stream(t, deep...), upperdir.Options{}); k != turnstone.KindExhausted {
			t.Errorf("%v: %v", k, err)
		}
	})
}

// tar itself expands the holes of a GNU sparse file to any number of zeros.
func TestGNUSparse(t *testing.T) {
	e := file("a", "x").with("XNU.sparse.major", "0", "XNU.sparse.minor", "1", "XNU.sparse.size",
		"1000000000000", "XNU.sparse.map", "0,1", "XNU.sparse.numblocks", "1")
	s := bytes.ReplaceAll(stream(t, dir("./"), e), []byte("XNU"), []byte("GNU"))
	r := tar.NewReader(bytes.NewReader(s))
	_, err := r.Next()
	must(t, err)
	if h, err := r.Next(); err != nil || h.Size != 1e12 {
		t.Fatalf("it is no such file: %+v %v", h, err)
	}
	if k, err := kind(t, s, upperdir.Options{}); k != turnstone.KindIntegrity {
		t.Error(err)
	}
}

// Each limit is enforced.
func TestBounds(t *testing.T) {
	s := stream(t, dir("./"), file("a", "12345"),
		file("b", "12345").with("SCHILY.xattr.user.x", strings.Repeat("v", 1000)))
	for name, opts := range map[string]upperdir.Options{
		"bytes": {Bytes: 9, Entries: 3}, "entries": {Entries: 2}, "meta": {Meta: 900},
	} {
		if k, err := kind(t, s, opts); k != turnstone.KindExhausted {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := kind(t, s, upperdir.Options{Bytes: 10, Entries: 3, Meta: 4000}); err != nil {
		t.Error(err)
	}
	holes := stream(t, dir("./"), file("a", "x").with("TURNSTONE.size", "1000", "TURNSTONE.sparse",
		"0,1"), file("b", "x").with("TURNSTONE.size", "1000", "TURNSTONE.sparse", "0,1"))
	if k, err := kind(t, holes, upperdir.Options{Holes: 1997}); k != turnstone.KindExhausted {
		t.Error(err)
	}
	if _, err := kind(t, holes, upperdir.Options{Holes: 1998}); err != nil {
		t.Error(err)
	}
	many := []entry{dir("./")}
	for range 40 {
		many = append(many, file(fmt.Sprint("f", len(many)), "").with("TURNSTONE.size",
			fmt.Sprint(1<<62), "TURNSTONE.sparse", ""))
	}
	if k, err := kind(t, stream(t, many...), upperdir.Options{}); k != turnstone.KindExhausted {
		t.Error(err)
	}
}

// A truncation at any offset is reported, also where tar would not notice.
func TestCutOff(t *testing.T) {
	s := stream(t, dir("./"), dir("a/"), file("a/zeros", strings.Repeat("\x00", 3000)),
		file("b", "x").with("TURNSTONE.size", "5", "TURNSTONE.sparse", "0,1"))
	for n := 0; n < len(s); n += testsize.Step(7) {
		if k, err := kind(t, s[:n], upperdir.Options{}); k != turnstone.KindIntegrity {
			t.Fatalf("%d of %d bytes: %v", n, len(s), err)
		}
	}
}

// An error of reading the stream is returned.
func TestStreamFails(t *testing.T) {
	broken := errors.New("broken")
	s := stream(t, dir("./"), file("a", strings.Repeat("x", 5000)))
	for _, n := range []int64{0, 100, 2048, 4000, int64(len(s))} {
		_, err := upperdir.Read(t.Context(), io.MultiReader(io.LimitReader(bytes.NewReader(s), n),
			iotest.ErrReader(broken)), t.TempDir(), upperdir.Options{})
		if !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := upperdir.Read(ctx, bytes.NewReader(s), t.TempDir(),
		upperdir.Options{}); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := upperdir.Read(t.Context(), bytes.NewReader(s), "/nowhere",
		upperdir.Options{}); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Error(err)
	}
}

// Nothing is left in the folder, and the contents outlive it.
func TestSpoolHasNoName(t *testing.T) {
	folder := t.TempDir()
	u, err := upperdir.Read(t.Context(), bytes.NewReader(stream(t, dir("./"), file("a", "x"))),
		folder, upperdir.Options{})
	must(t, err)
	defer func() { _ = u.Close() }()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	must(t, os.Remove(folder))
	if got := all(t, u.Root()); got["/a"] != "x" {
		t.Error(got)
	}
}

// FuzzRead: for any stream, the result is a readable tree within the bounds.
func FuzzRead(f *testing.F) {
	f.Add(stream(f, dir("./"), dir("a/"), file("a/f", "data").with("TURNSTONE.links", "2",
		"SCHILY.xattr.user.x", "v"), link("a/g", "a/f")))
	f.Add(stream(f, dir("./"), file("p", "ab").with("TURNSTONE.size", "8", "TURNSTONE.sparse",
		"0,2"), file("p", "cd").with("TURNSTONE.more", "5,2")))
	f.Add(stream(f, dir("./"), entry{Header: tar.Header{Name: "w", Typeflag: tar.TypeChar}},
		entry{Header: tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/a"}}))
	folder := f.TempDir()
	f.Fuzz(func(t *testing.T, s []byte) {
		u, err := upperdir.Read(t.Context(), bytes.NewReader(s), folder,
			upperdir.Options{Bytes: 1 << 20, Holes: 1 << 20, Entries: 100, Meta: 1 << 16})
		if err != nil {
			var te *turnstone.Error
			if !errors.As(err, &te) || te.Hint == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		defer func() { _ = u.Close() }()
		seen, data := 0, int64(0)
		var walk func(n tree.Node)
		walk = func(n tree.Node) {
			a, err := n.Attr()
			must(t, err)
			seen++
			if a.Type == tree.File {
				f, err := n.Open()
				must(t, err)
				k, err := io.Copy(io.Discard, f)
				must(t, err)
				if data += k; k != a.Size {
					t.Fatalf("%d bytes of %d", k, a.Size)
				}
				return
			}
			kids, err := n.Children(t.Context())
			must(t, err)
			for i, k := range kids {
				if tree.CheckName(k.Name) != nil || i > 0 && k.Name <= kids[i-1].Name {
					t.Fatalf("%q", k.Name)
				}
				walk(k.Node)
			}
		}
		walk(u.Root())
		if seen > 100 || data > 100*(2<<20) {
			t.Fatalf("%d entries, %d bytes", seen, data)
		}
	})
}
