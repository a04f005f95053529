package tarfiles

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sparse"
)

// sparseTree makes a folder with files that have holes in all places, beside others.
func sparseTree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	for name, f := range map[string]struct {
		size int64
		at   []int64
	}{
		"a hole":           {16 << 20, nil},
		"begin":            {16 << 20, []int64{0}},
		"end":              {16<<20 + 5, []int64{16 << 20}},
		"middle":           {16<<20 + 5, []int64{1 << 20, 1<<20 + 4096, 9 << 20}},
		"empty":            {0, nil},
		"small":            {5, []int64{0}},
		"sub/" + long():    {16 << 20, []int64{5 << 20}},
		"sub/é\xff\nname=": {16 << 20, []int64{5 << 20}},
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeSparse(t, path, f.size, f.at...)
	}
	when := time.Date(2001, 2, 3, 4, 5, 6, 700, time.UTC)
	if err := errors.Join(os.Chmod(filepath.Join(dir, "middle"), 0o640),
		os.Chtimes(filepath.Join(dir, "middle"), when, when)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func long() string { return strings.Repeat("n", 200) }

// writeSparse writes a file of a size that is a hole except for pieces of text.
func writeSparse(t *testing.T, path string, size int64, at ...int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	err = f.Truncate(size)
	for _, off := range at {
		_, werr := f.WriteAt(fmt.Append(nil, off)[:1], off)
		err = errors.Join(err, werr)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// onDisk returns the bytes of a file that are no hole.
func onDisk(t *testing.T, path string) (n int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range sparse.Parts(f, st.Size(), maxParts) {
		n += p.Length
	}
	return n
}

func tellsHoles(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hole")
	if writeSparse(t, path, 1<<20); onDisk(t, path) != 0 {
		t.Skip("this file system does not tell holes")
	}
}

// sums returns the digest, the mode and the time of each file below dir.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range list(t, dir) {
		path := filepath.Join(dir, name)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		st, err := f.Stat()
		if err == nil && !st.IsDir() {
			_, err = io.Copy(sum, f)
			all[name] = fmt.Sprintf("%x %v %v", sum.Sum(nil), st.Mode(), st.ModTime().UTC())
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestHoles: holes are not sent, and every reader of tar makes the same files of the stream.
func TestHoles(t *testing.T) {
	tellsHoles(t)
	src := sparseTree(t)
	var b bytes.Buffer
	if err := Pack(t.Context(), &b, src, ""); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 1<<20 {
		t.Errorf("%d bytes were sent", b.Len())
	}
	want := sums(t, src)
	for name, unpack := range map[string]func(dir string) error{
		"this package": func(dir string) error {
			return Unpack(t.Context(), bytes.NewReader(b.Bytes()), dir, Any(), Limits{})
		},
		"tar": func(dir string) error {
			return run(bytes.NewReader(b.Bytes()), "tar", "-xpf", "-", "-C", dir)
		},
		"Python": func(dir string) error {
			return run(bytes.NewReader(b.Bytes()), "python3", "-c", "import sys, tarfile\n"+
				"tarfile.open(fileobj=sys.stdin.buffer, mode='r|', errors='surrogateescape').extractall(sys.argv[1])",
				dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unpack(dir); errors.Is(err, exec.ErrNotFound) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			got := sums(t, filepath.Join(dir, "tree"))
			for file, sum := range want {
				if name == "Python" { // which knows times to a microsecond
					sum, got[file] = strings.Fields(sum)[0], strings.Fields(got[file] + " ")[0]
				}
				if got[file] != sum {
					t.Errorf("%q: %s, want %s", file, got[file], sum)
				}
				if disk := onDisk(t, filepath.Join(dir, "tree", file)); disk > 128<<10 {
					t.Errorf("%q: %d bytes are no hole", file, disk)
				}
			}
		})
	}
	b.Reset()
	if err := (&Packer{}).Pack(t.Context(), &b, src, ""); err != nil || b.Len() < 64<<20 {
		t.Errorf("%d bytes, without the sparse format: %v", b.Len(), err)
	}
}

func run(in io.Reader, name string, args ...string) error {
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestLargeHole: a hole costs neither space nor transfer.
func TestLargeHole(t *testing.T) {
	tellsHoles(t)
	const size = 1 << 30
	src := filepath.Join(t.TempDir(), "f")
	var at []int64
	for i := range int64(100) {
		at = append(at, i<<20)
	}
	writeSparse(t, src, size, append(at, size-1)...)
	sent := &counting{}
	r, w := io.Pipe()
	var packing sync.WaitGroup
	packing.Go(func() { _ = w.CloseWithError(Pack(t.Context(), io.MultiWriter(w, sent), src, "")) })
	dir := t.TempDir()
	err := Unpack(t.Context(), r, dir, Any(), Limits{Bytes: 1 << 20, Holes: size})
	_ = r.Close() // what follows the end is not read
	packing.Wait()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "f")
	st, err := os.Stat(to)
	if err != nil || st.Size() != size || sent.n > 1<<20 || onDisk(t, to) > 1<<20 {
		t.Errorf("%d bytes, %d sent, %d on disk: %v", st.Size(), sent.n, onDisk(t, to), err)
	}
	f, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 2)
	for _, off := range at {
		if _, err := f.ReadAt(b, off); err != nil || string(b) != fmt.Sprint(off)[:1]+"\x00" {
			t.Errorf("at %d: %q, %v", off, b, err)
		}
	}
}

type counting struct{ n int64 }

func (c *counting) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// TestHostileHoles: zeros that use no space are bounded too, in whatever form they come, and data is bounded as ever.
func TestHostileHoles(t *testing.T) {
	tellsHoles(t)
	path := filepath.Join(t.TempDir(), "f")
	writeSparse(t, path, 8<<20, 4<<20)
	var b bytes.Buffer
	if err := Pack(t.Context(), &b, path, ""); err != nil {
		t.Fatal(err)
	}
	entryOf := func(size, parts string) []byte { // all numbers are the sender's
		records := record("GNU.sparse.size", size) + record("GNU.sparse.map", parts) +
			record("GNU.sparse.numblocks", fmt.Sprint(strings.Count(parts, ",")/2+1))
		all := slices.Concat(header("x", tar.TypeXHeader, 0, int64(len(records)), time.Time{}), []byte(records),
			padding(int64(len(records))), header("f", tar.TypeReg, 0o644, 4, time.Time{}), []byte("data"), padding(4))
		return append(all, make([]byte, 1024)...)
	}
	zeros := stream(t, entry{Header: tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: 8 << 20},
		body: string(make([]byte, 8<<20))})
	for name, tt := range map[string]struct {
		stream []byte
		lim    Limits
		kind   turnstone.Kind
	}{
		"holes":                 {b.Bytes(), Limits{Bytes: 1 << 20, Holes: 8 << 20}, ""},
		"holes as zeros":        {zeros, Limits{Bytes: 1, Holes: 8 << 20}, ""},
		"too many":              {b.Bytes(), Limits{Bytes: 1 << 20, Holes: 4 << 20}, turnstone.KindExhausted},
		"too many, as zeros":    {zeros, Limits{Bytes: 1 << 20, Holes: 4 << 20}, turnstone.KindExhausted},
		"holes that count":      {b.Bytes(), Limits{Bytes: 8 << 20}, ""},
		"too many that count":   {b.Bytes(), Limits{Bytes: 8<<20 - 1}, turnstone.KindExhausted},
		"too much data":         {b.Bytes(), Limits{Bytes: 1, Holes: 8 << 20}, turnstone.KindExhausted},
		"one part":              {entryOf("4096", "0,4"), Limits{}, ""},
		"shorter than its data": {entryOf("3", "0,4"), Limits{}, turnstone.KindInvalid},
		"of a negative size":    {entryOf("-1", "0,4"), Limits{}, turnstone.KindInvalid},
		"less data":             {entryOf("4096", "0,5"), Limits{}, turnstone.KindInvalid},
		"more data":             {entryOf("4096", "0,3"), Limits{}, turnstone.KindInvalid},
		"parts out of order":    {entryOf("4096", "9,2,0,2"), Limits{}, turnstone.KindInvalid},
		"8 EiB":                 {entryOf("9223372036854775807", "0,4"), Limits{Holes: 1 << 40}, turnstone.KindExhausted},
		"8 EiB of the caller": {entryOf("9223372036854775807", "0,4"), Limits{Bytes: 1 << 60, Trusted: true},
			turnstone.KindExhausted},
	} {
		dir := t.TempDir()
		err := Unpack(t.Context(), bytes.NewReader(tt.stream), dir, Any(), tt.lim)
		if (err == nil) != (tt.kind == "") || err != nil && turnstone.KindOf(err) != tt.kind {
			t.Errorf("%s: %v", name, err)
		}
		if left := list(t, dir); err != nil && len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
}

// TestContents: what is in a folder is copied without the folder's name, from paths with the end "/.", and nothing but a
// folder has contents.
func TestContents(t *testing.T) {
	for source, want := range map[string]string{"": "", "a": "", "a/": "", "a/.": "a", "/a/b/./": "/a/b", ".": ".",
		"./": ".", "/.": "/", "a//.": "a", "..": "", "a/..": "", ".a": "", "a/b.": ""} {
		folder, contents := CutContents(source)
		if contents != (want != "") || contents && folder != want {
			t.Errorf("%q: %q, %v", source, folder, contents)
		}
	}
	src := t.TempDir()
	if err := errors.Join(os.WriteFile(src+"/a", []byte("A"), 0o644), os.MkdirAll(src+"/sub", 0o755),
		os.Symlink("../a", src+"/sub/l")); err != nil {
		t.Fatal(err)
	}
	var b, alone bytes.Buffer
	if err := errors.Join(Pack(t.Context(), &b, src, "."), Pack(t.Context(), &alone, src+"/a", "x")); err != nil {
		t.Fatal(err)
	}
	into := t.TempDir()
	if err := Unpack(t.Context(), &b, into+"/new/", Any(), Limits{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	want := "[a sub/ sub/l -> ../a]"
	if got := fmt.Sprint(list(t, into+"/new")); got != want {
		t.Error(got)
	}
	top, err := TopOf("/x/src")
	if err != nil {
		t.Fatal(err)
	}
	whole := stream(t, dir("src/"), file("src/a", "A"), dir("src/sub/"), link("src/sub/l", "../a"))
	linked := filepath.Join(t.TempDir(), "link")
	there := t.TempDir()
	if err := os.Symlink(there, linked); err != nil {
		t.Fatal(err)
	}
	for _, dest := range []string{t.TempDir(), filepath.Join(t.TempDir(), "new"), t.TempDir() + "/new/", linked} {
		for range 2 { // and once more, over the first
			err := Unpack(t.Context(), bytes.NewReader(whole), dest, top, Limits{Contents: true})
			if got := fmt.Sprint(list(t, dest+"/")); err != nil || got != want {
				t.Errorf("%s: %s, %v", dest, got, err)
			}
		}
	}
	at := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(at, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"over a file": Unpack(t.Context(), bytes.NewReader(whole), at, top, Limits{Contents: true}),
		"of a file": Unpack(t.Context(), bytes.NewReader(stream(t, file("src", "x"))), t.TempDir(), top,
			Limits{Contents: true}),
		"to the root":         Unpack(t.Context(), bytes.NewReader(whole), "/", top, Limits{Contents: true}),
		"a folder for a file": Unpack(t.Context(), bytes.NewReader(whole), at, top, Limits{}),
		"packed of a file":    Pack(t.Context(), io.Discard, at, "."),
		"a file as a folder":  Pack(t.Context(), io.Discard, at+"/", ""),
	} {
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if old, err := os.ReadFile(at); err != nil || string(old) != "old" {
		t.Errorf("the file is %q: %v", old, err)
	}
}

// TestTrustedHardLinks: hard links of the caller's own stream are made, and lead to nothing but files of the stream's
// destination.
func TestTrustedHardLinks(t *testing.T) {
	hard := func(name, to string) entry {
		return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}}
	}
	at := t.TempDir()
	good := stream(t, file("d/a", "A"), hard("d/b", "d/a"), hard("c", "./d/a"))
	if err := Unpack(t.Context(), bytes.NewReader(good), at, Any(), Limits{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	a, _ := os.Stat(at + "/d/a")
	for _, name := range []string{"/d/b", "/c"} {
		if b, err := os.Stat(at + name); err != nil || !os.SameFile(a, b) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, to := range []string{"/etc/passwd", "../x", "none", "d/l/x", ""} {
		bad := stream(t, dir("d/"), link("d/l", "/etc"), hard("b", to))
		if err := Unpack(t.Context(), bytes.NewReader(bad), t.TempDir(), Any(), Limits{Trusted: true}); err == nil {
			t.Errorf("a link to %q", to)
		}
	}
}

// TestOwners: owners are kept by numbers, if that is asked for.
func TestOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	src := filepath.Join(t.TempDir(), "src")
	if err := errors.Join(os.MkdirAll(src+"/d", 0o755), os.Symlink("x", src+"/l")); err != nil {
		t.Fatal(err)
	}
	writeSparse(t, src+"/d/hole", 1<<20)
	writeSparse(t, src+"/d/data", 5, 0)
	for _, name := range []string{"", "/d", "/d/hole", "/d/data", "/l"} {
		if err := os.Lchown(src+name, 1234, 3_000_000); err != nil {
			t.Fatal(err)
		}
	}
	for _, keep := range []bool{false, true} {
		var b bytes.Buffer
		if err := (&Packer{Holes: true, Owners: keep}).Pack(t.Context(), &b, src, ""); err != nil {
			t.Fatal(err)
		}
		at := t.TempDir()
		if err := Unpack(t.Context(), &b, at, Any(), Limits{Trusted: true, Owners: keep}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "/d", "/d/hole", "/d/data", "/l"} {
			st, err := os.Lstat(at + "/src" + name)
			if err != nil {
				t.Fatal(err)
			}
			s := st.Sys().(*syscall.Stat_t)
			if got := s.Uid == 1234 && s.Gid == 3_000_000; got != keep {
				t.Errorf("%q, kept %v: %d, %d", name, keep, s.Uid, s.Gid)
			}
		}
	}
}
