package tarfiles

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644,
		Size: int64(len(body))}, body}
}
func dir(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}
func link(name, to string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, ""}
}

func stream(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// list returns the entries below dir, each with a mark of its kind.
func list(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case d.IsDir():
			rel += "/"
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(path)
			rel += " -> " + to
		}
		names = append(names, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestDestination is the table of destinations.
func TestDestination(t *testing.T) {
	tree := []entry{dir("src/"), file("src/a", "A"), dir("src/d/"),
		file("src/d/b", "B"), link("src/l", "d/b")}
	for _, tt := range []struct {
		name    string
		entries []entry
		prepare func(dir string)
		dest    string
		want    []string
	}{
		{"into a folder", tree, nil, ".",
			[]string{"src/", "src/a", "src/d/", "src/d/b", "src/l -> d/b"}},
		{"into a folder that is made", tree, nil, "x/y/",
			[]string{"x/", "x/y/", "x/y/src/", "x/y/src/a", "x/y/src/d/", "x/y/src/d/b",
				"x/y/src/l -> d/b"}},
		{"renamed", tree, nil, "x/new", []string{"x/", "x/new/", "x/new/a", "x/new/d/",
			"x/new/d/b", "x/new/l -> d/b"}},
		{"file into a folder", []entry{file("f", "F")},
			func(d string) { _ = os.Mkdir(d+"/x", 0o755) }, "x", []string{"x/", "x/f"}},
		{"file renamed", []entry{file("f", "F")}, nil, "g", []string{"g"}},
		{"file over a file", []entry{file("f", "F")},
			func(d string) { _ = os.WriteFile(d+"/g", []byte("old"), 0o600) }, "g", []string{"g"}},
		{"file over a link", []entry{file("f", "F")},
			func(d string) { _ = os.Symlink("/etc/hostname", d+"/g") }, "g", []string{"g"}},
		{"folder over a link", tree[:2], func(d string) { _ = os.Symlink("/etc", d+"/src") }, ".",
			[]string{"src/", "src/a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := t.TempDir()
			if tt.prepare != nil {
				tt.prepare(d)
			}
			if err := Unpack(t.Context(), bytes.NewReader(stream(t, tt.entries...)),
				d+"/"+tt.dest, Any(), Limits{}); err != nil {
				t.Fatal(err)
			}
			if got := list(t, d); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestHostile: what no stream may do.
func TestHostile(t *testing.T) {
	big := entry{tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: 3000},
		strings.Repeat("x", 3000)}
	for _, tt := range []struct {
		name    string
		entries []entry
		kind    turnstone.Kind // "" means no error
		want    []string
		skipped int
	}{
		{"absolute", []entry{file("/etc/turnstone-test", "x")}, turnstone.KindInvalid, nil, 0},
		{"parent", []entry{file("../x", "x")}, turnstone.KindInvalid, nil, 0},
		{"parent inside", []entry{file("a/../../x", "x")}, turnstone.KindInvalid, nil, 0},
		{"dots", []entry{file("a/..", "x")}, turnstone.KindInvalid, nil, 0},
		{"no name", []entry{dir("./")}, "", nil, 0},
		{"file without a name", []entry{file(".", "x")}, turnstone.KindInvalid, nil, 0},
		{"link out", []entry{link("l", "/etc")}, "", nil, 1},
		{"link up", []entry{link("l", "../x")}, "", nil, 1},
		{"link through", []entry{dir("d/"), link("d/l", "../d/../../x")}, "", []string{"d/"}, 1},
		{"write through a link out", []entry{link("l", ".."), file("l/x", "x")}, "",
			[]string{"l/", "l/x"}, 1},
		{"write through a link in", []entry{dir("t/d/"), link("t/l", "d"), file("t/l/x", "x")},
			turnstone.KindInvalid, []string{"t/", "t/d/", "t/l -> d"}, 0},
		{"folder through a link in", []entry{dir("t/d/"), link("t/l", "d"), dir("t/l/x/")},
			turnstone.KindInvalid, []string{"t/", "t/d/", "t/l -> d"}, 0},
		{"link to a neighbour", []entry{dir("out/"), link("out/report.csv", "../.env")}, "",
			[]string{"out/"}, 1},
		{"link up and down again", []entry{dir("out/"), link("out/l", "../out/x")}, "",
			[]string{"out/"}, 1},
		{"link instead of the copy", []entry{link("out", "x")}, "", nil, 1},
		{"link to the copy itself", []entry{dir("out/"), link("out/l", ".")}, "",
			[]string{"out/", "out/l -> ."}, 0},
		{"link in the copy", []entry{file("out/d/x", "x"), link("out/d/l", "../m/y")}, "",
			[]string{"out/", "out/d/", "out/d/l -> ../m/y", "out/d/x"}, 0},
		{"link up after a name", []entry{dir("out/"), link("out/l", "d/../x")}, "",
			[]string{"out/"}, 1},
		{"hard link to a link", []entry{link("t/l", "x"),
			{tar.Header{Name: "t/h", Typeflag: tar.TypeLink, Linkname: "t/l"}, ""}}, "",
			[]string{"t/", "t/l -> x"}, 1},
		{"hard link",
			[]entry{{tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}, ""}},
			"",
			nil, 1},
		{"device", []entry{{tar.Header{Name: "c", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
			""}}, "", nil, 1},
		{"pipe", []entry{{tar.Header{Name: "p", Typeflag: tar.TypeFifo}, ""}}, "", nil, 1},
		{"too many", []entry{file("1", ""), file("2", ""), file("3", ""), file("4", "")},
			turnstone.KindExhausted, []string{"1", "2", "3"}, 0},
		{"too large", []entry{big}, turnstone.KindExhausted, nil, 0},
		{"too deep", []entry{file(strings.Repeat("a/", 300)+"x", "x")},
			turnstone.KindInvalid, nil, 0},
		{"file over a folder", []entry{dir("d/"), file("d/x", ""), file("d", "x")},
			turnstone.KindInvalid, []string{"d/", "d/x"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			outer := t.TempDir()
			d := filepath.Join(outer, "dest")
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
			skipped := 0
			err := Unpack(t.Context(), bytes.NewReader(stream(t, tt.entries...)), d,
				Any(), Limits{Entries: 3, Bytes: 2000, Skipped: func(string, string) { skipped++ }})
			if (err == nil) != (tt.kind == "") || err != nil && turnstone.KindOf(err) != tt.kind {
				t.Errorf("error %v of kind %s, want %q", err, turnstone.KindOf(err), tt.kind)
			}
			if got := list(t, d); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if skipped != tt.skipped {
				t.Errorf("%d left out, want %d", skipped, tt.skipped)
			}
			if got := list(t, outer); len(got) != len(tt.want)+1 {
				t.Errorf("outside of the destination: %q", got)
			}
		})
	}
}

// TestRoundTrip: packing and unpacking preserves content, modes and times.
func TestRoundTrip(t *testing.T) {
	src := filepath.Join(t.TempDir(), "src")
	when := time.Date(2001, 2, 3, 4, 5, 6, 700, time.UTC)
	long := strings.Repeat("n", 200)
	errs := errors.Join(
		os.MkdirAll(filepath.Join(src, "d", long), 0o755),
		os.WriteFile(filepath.Join(src, "d", long, "é\xff\n"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(src, "run"), bytes.Repeat([]byte("y"), 1<<20), 0o755),
		os.Symlink("run", filepath.Join(src, "link")),
		syscall.Mkfifo(filepath.Join(src, "pipe"), 0o600),
		os.Chmod(filepath.Join(src, "d"), 0o555),
		os.Chtimes(filepath.Join(src, "run"), when, when),
		os.Chtimes(filepath.Join(src, "d"), when, when),
	)
	if errs != nil {
		t.Fatal(errs)
	}
	defer func() { _ = os.Chmod(filepath.Join(src, "d"), 0o755) }()
	dst := filepath.Join(t.TempDir(), "dst")
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(Pack(t.Context(), w, src, "other")) }()
	if err := Unpack(t.Context(), r, dst, Any(), Limits{}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(filepath.Join(dst, "d"), 0o755) }()
	want := slices.DeleteFunc(list(t, src), func(s string) bool { return s == "pipe" })
	if got := list(t, dst); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range []string{"d", "run"} {
		st, err := os.Stat(filepath.Join(dst, name))
		was, _ := os.Stat(filepath.Join(src, name))
		if err != nil || !st.ModTime().Equal(when) || st.Mode() != was.Mode() {
			t.Errorf("%s: %v %v, %v", name, st.Mode(), st.ModTime(), err)
		}
	}
}

func TestFailures(t *testing.T) {
	if err := Pack(t.Context(), io.Discard, "/no/such",
		""); turnstone.KindOf(err) != turnstone.KindNotFound || turnstone.HintOf(err) == "" {
		t.Errorf("pack: %v", err)
	}
	if err := Pack(t.Context(), io.Discard, "/",
		""); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("pack of the root: %v", err)
	}
	whole := stream(t, file("f", strings.Repeat("x", 5000)))
	for _, n := range []int{1, 511, 700, 5000} {
		if err := Unpack(t.Context(), bytes.NewReader(whole[:n]), t.TempDir(),
			Any(), Limits{}); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("cut off at %d: %v", n, err)
		}
	}
	sent := &turnstone.Error{Kind: turnstone.KindNotFound}
	if err := Unpack(t.Context(), io.MultiReader(bytes.NewReader(whole[:700]), failing{sent}),
		t.TempDir(), Any(), Limits{}); !errors.Is(err, sent) &&
		turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("a sender's error: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	if err := Unpack(ctx, bytes.NewReader(whole), t.TempDir(), Any(), Limits{}); !errors.Is(err, why) {
		t.Errorf("unpack, canceled: %v", err)
	}
	if err := Pack(ctx, io.Discard, t.TempDir(), "x"); !errors.Is(err, why) {
		t.Errorf("pack, canceled: %v", err)
	}
}

// TestPartial: a stream that breaks off leaves no part of a file, and what was there stays.
func TestPartial(t *testing.T) {
	whole := stream(t, dir("d/"), file("d/first", "new"), file("d/second", strings.Repeat("x", 1<<20)))
	sent := turnstone.NewError("", turnstone.KindDead, "the connection", nil)
	for _, n := range []int{512*3 + 700, 512*4 + 1, len(whole) / 2, 512*4 + 1<<20 - 1} {
		for _, old := range []bool{false, true} {
			at := t.TempDir()
			want := []string{"d/", "d/first"}
			if old {
				want = append(want, "d/second")
				for name, text := range map[string]string{"first": "old", "second": "kept"} {
					if err := errors.Join(os.MkdirAll(filepath.Join(at, "d"), 0o755),
						os.WriteFile(filepath.Join(at, "d", name), []byte(text), 0o600)); err != nil {
						t.Fatal(err)
					}
				}
			}
			err := Unpack(t.Context(), io.MultiReader(bytes.NewReader(whole[:n]), failing{sent}), at,
				Any(), Limits{})
			if turnstone.KindOf(err) != turnstone.KindDead {
				t.Errorf("cut off at %d: %v", n, err)
			}
			if got := list(t, at); !slices.Equal(got, want) {
				t.Errorf("cut off at %d: left %q, want %q", n, got, want)
			}
			first, _ := os.ReadFile(filepath.Join(at, "d", "first"))
			second, _ := os.ReadFile(filepath.Join(at, "d", "second"))
			if string(first) != "new" || old && string(second) != "kept" {
				t.Errorf("cut off at %d: %q, %q", n, first, second)
			}
		}
	}
}

// TestReplaces: what has the name of a file makes room for the file, except a folder with files.
func TestReplaces(t *testing.T) {
	whole := stream(t, file("f", "new"))
	for name, make := range map[string]func(at string) error{
		"a file":        func(at string) error { return os.WriteFile(at, []byte("old"), 0o400) },
		"a link":        func(at string) error { return os.Symlink("/etc/passwd", at) },
		"a folder":      func(at string) error { return os.Mkdir(at, 0o755) },
		"a full folder": func(at string) error { return os.MkdirAll(filepath.Join(at, "x"), 0o755) },
	} {
		at := filepath.Join(t.TempDir(), "f")
		if err := make(at); err != nil {
			t.Fatal(err)
		}
		err := Unpack(t.Context(), bytes.NewReader(whole), filepath.Dir(at), Any(), Limits{})
		if name == "a full folder" {
			if turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Errorf("%s: %v", name, err)
			}
			if got := list(t, at); !slices.Equal(got, []string{"x/"}) {
				t.Errorf("%s: left %q", name, got)
			}
			continue
		}
		st, _ := os.Lstat(at)
		if got, rerr := os.ReadFile(at); err != nil || string(got) != "new" || !st.Mode().IsRegular() {
			t.Errorf("%s: %q, %v, %v", name, got, err, rerr)
		}
		if got := list(t, filepath.Dir(at)); len(got) != 1 {
			t.Errorf("%s: left %q", name, got)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// An unpacked file that is a single hole uses no disk space and has its full length and bytes.
func TestSparse(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	want := make([]byte, 3<<20)
	copy(want[1<<20+77:], "in the middle")
	for name, b := range map[string][]byte{"middle": want, "zeros": make([]byte, 2<<20),
		"odd": append(make([]byte, 10_000), 'x'), "empty": nil} {
		if err := os.WriteFile(filepath.Join(src, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(src, "zeros"), 1<<30); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(Pack(t.Context(), w, src, "it")) }()
	if err := Unpack(t.Context(), r, dst, Any(), Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"middle", "odd", "empty"} {
		a, _ := os.ReadFile(filepath.Join(src, name))
		b, err := os.ReadFile(filepath.Join(dst, "it", name))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes, want %d: %v", name, len(b), len(a), err)
		}
	}
	st, err := os.Stat(filepath.Join(dst, "it", "zeros"))
	if err != nil || st.Size() != 1<<30 {
		t.Fatal(st, err)
	}
	if room := st.Sys().(*syscall.Stat_t).Blocks * 512; room > 1<<20 {
		t.Errorf("a hole takes %d bytes of disk", room)
	}
}

// A disk that is almost full is reported before it is full.
func TestRoom(t *testing.T) {
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "a"),
		bytes.Repeat([]byte("x"), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	for _, dest := range []string{top, filepath.Join(top, "new") + "/",
		filepath.Join(top, "new", "file")} {
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(Pack(t.Context(), w, src, "it")) }()
		err := Unpack(t.Context(), r, dest, Any(), Limits{Room: func(dir string) error {
			if dir != top {
				t.Errorf("%s: the space of %s is checked", dest, dir)
			}
			return syscall.ENOSPC
		}})
		_ = r.Close()
		if turnstone.KindOf(err) != turnstone.KindExhausted {
			t.Errorf("%s: %v", dest, err)
		}
		if left, err := os.ReadDir(top); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", dest, left, err)
		}
	}
}

// Links that change meanwhile are not followed out of the folder.
func TestPackRootStaysInside(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	var b bytes.Buffer
	if err := PackRoot(t.Context(), &b, root, "data", "data"); err == nil ||
		bytes.Contains(b.Bytes(), []byte("secret")) {
		t.Errorf("%v, %q", err, b.Bytes())
	}
}
