//go:build linux

package hostdir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func build(t testing.TB, s *treetest.Store, path string) turnstone.TreeRef {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ref, err := tree.Build(context.Background(), s, d, tree.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestAFolderIsWhatItSeems(t *testing.T) {
	dir := t.TempDir()
	p := func(name string) string { return filepath.Join(dir, name) }
	when := time.Unix(1700000000, 123456789)
	must(t,
		os.Chmod(dir, 0o751),
		os.Mkdir(p("sub"), 0o700),
		os.WriteFile(p("sub/file"), []byte("hello"), 0o640),
		os.Link(p("sub/file"), p("again")),
		os.Symlink("sub/../nowhere", p("sym")),
		os.WriteFile(p("\xff\xfe"), nil, 0o600),
		os.WriteFile(p(strings.Repeat("n", 255)), []byte("x"), 0o600),
		unix.Mkfifo(p("fifo"), 0o620),
		os.Chmod(p("fifo"), 0o620), // for any umask
		os.Chmod(p("sub/file"), 0o640|os.ModeSetuid))
	must(t, unix.Mknod(p("socket"), unix.S_IFSOCK|0o700, 0)) // Listen takes only a short path
	xattr := ""
	if unix.Setxattr(p("sub/file"), "user.note", []byte("hi\x00"), 0) == nil {
		xattr = ` user.note="hi\x00"`
	}
	device := unix.Mknod(p("zero"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) == nil
	for _, name := range []string{"sub/file", "\xff\xfe", strings.Repeat("n", 255),
		"fifo", "sub", "", "zero"} {
		_ = os.Chtimes(p(name), when, when)
	}
	owner := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	stamp := owner + " @1700000000.123456789 "
	s := treetest.NewStore()
	got := treetest.List(t, s, build(t, s, dir))
	got = slices.DeleteFunc(got, func(l string) bool { return strings.HasPrefix(l, "l ") })
	want := []string{
		"d 0751 " + stamp + "/",
		"f 4640 " + stamp + "/again" + xattr + ` "hello" same as /again`,
		"p 0620 " + stamp + "/fifo",
		"f 0600 " + stamp + "/" + strings.Repeat("n", 255) + ` "x"`,
		"d 0700 " + stamp + "/sub",
		"f 4640 " + stamp + "/sub/file" + xattr + ` "hello" same as /again`,
		"f 0600 " + stamp + `"/\xff\xfe" ""`,
	}
	if device {
		want = slices.Insert(want, 6, "c 0600 "+stamp+"/zero 1,5")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	e, err := tree.Lookup(context.Background(), s, build(t, s, dir), "/sym")
	if err != nil || e.Type != tree.Symlink || e.Target != "sub/../nowhere" || e.Mode != 0o777 {
		t.Errorf("%+v %v", e, err)
	}
}

func TestSparseFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, test := range []struct {
		name string
		size int64
		data map[int64]string
	}{
		{"only a hole", 1 << 20, nil},
		{"data in front", 3 << 20, map[int64]string{0: "front"}},
		{"data at the end", 3<<20 + 5, map[int64]string{3 << 20: "end!!"}},
		{"data between", 8 << 20, map[int64]string{1 << 20: "a", 5<<20 - 1: "bc"}},
		{"64 GiB of nothing", 64 << 30, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.size > 1<<30 && testing.Short() {
				t.Skip("hashing it takes a minute")
			}
			f, err := os.Create(path)
			must(t, err, f.Truncate(test.size))
			for off, s := range test.data {
				_, err := f.WriteAt([]byte(s), off)
				must(t, err)
			}
			must(t, f.Close())
			d, err := Open(filepath.Dir(path))
			must(t, err)
			defer d.Close()
			kids, err := d.Children(t.Context())
			must(t, err)
			r, err := kids[0].Node.Open()
			must(t, err)
			if test.size > 1<<30 { // it is enough that the data arrives quickly
				buf := make([]byte, 1<<20)
				start := time.Now()
				for range 1024 {
					if _, err := io.ReadFull(r, buf); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(start); took > time.Minute {
					t.Errorf("1 GiB of a hole took %s", took)
				}
				must(t, r.Close())
				return
			}
			h := sha256.New()
			n, err := io.Copy(h, r)
			must(t, err, r.Close())
			b, err := os.ReadFile(path)
			must(t, err)
			if want := turnstone.DigestBytes(b); n != test.size ||
				hex.EncodeToString(h.Sum(nil)) != want.Hex() {
				t.Errorf("%d bytes, %x, want %s", n, h.Sum(nil), want)
			}
		})
	}
}

func TestDeepPaths(t *testing.T) {
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	must(t, err)
	name := strings.Repeat("d", 200)
	for range 100 { // 20,000 bytes of path
		must(t, unix.Mkdirat(at, name, 0o700))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY, 0)
		must(t, err, unix.Close(at))
		at = next
	}
	fd, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	_, err = unix.Write(fd, []byte("deep"))
	must(t, err, unix.Close(fd), unix.Close(at))
	t.Cleanup(func() { _ = exec.Command("rm", "-rf", dir).Run() })
	s := treetest.NewStore()
	ref := build(t, s, dir)
	e, err := tree.Lookup(t.Context(), s, ref, strings.Repeat("/"+name, 100)+"/file")
	if err != nil || e.Size != 4 {
		t.Errorf("%+v %v", e, err)
	}
}

func TestOpenWithoutOpenat2(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o700),
		os.WriteFile(filepath.Join(dir, "a/b/c"), []byte("x"), 0o600),
		os.Symlink("b", filepath.Join(dir, "a/l")), os.Symlink("c", filepath.Join(dir, "a/b/l")))
	top, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	must(t, err)
	defer unix.Close(top)
	for _, open := range []func(int, string, int) (int, error){openNames, openStep, openBelow} {
		for path, want := range map[string]error{"a/b/c": nil, "a/l/c": unix.ENOTDIR,
			"a/b/l": unix.ELOOP, "a/b/none": unix.ENOENT, "a/b/c/d": unix.ENOTDIR} {
			fd, err := open(top, path, unix.O_RDONLY)
			if err == nil {
				must(t, unix.Close(fd))
			}
			if !errors.Is(err, want) && !(errors.Is(err, unix.ELOOP) && path == "a/l/c") {
				t.Errorf("%s: %v, want %v", path, err, want)
			}
		}
	}
}

// TestChangesAreNoticed changes files between reading their directory and reading the files.
func TestChangesAreNoticed(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"grows":     func(p string) error { return appendTo(p, "more") },
		"shrinks":   func(p string) error { return os.Truncate(p, 1) },
		"rewritten": func(p string) error { return os.WriteFile(p, []byte("DATA"), 0o600) },
		"replaced": func(p string) error {
			return errors.Join(os.WriteFile(p+"2", []byte("data"), 0o600), os.Rename(p+"2", p))
		},
		"symlink": func(p string) error {
			return errors.Join(os.Remove(p), os.Symlink("/etc/passwd", p))
		},
		"dir linked": func(p string) error {
			return errors.Join(os.Rename(filepath.Dir(p), filepath.Dir(p)+"2"),
				os.Symlink("d2", filepath.Dir(p)))
		},
		"gone":   os.Remove,
		"a fifo": func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "d/f")
			must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700),
				os.WriteFile(path, []byte("data"), 0o600))
			top, err := Open(dir)
			must(t, err)
			defer top.Close()
			kids, err := top.Children(t.Context())
			must(t, err)
			kids, err = kids[0].Node.Children(t.Context())
			must(t, err, change(path))
			r, err := kids[0].Node.Open()
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				if cerr := r.Close(); err == nil {
					err = cerr
				}
			}
			if k := turnstone.KindOf(err); k != turnstone.KindUnavailable &&
				k != turnstone.KindNotFound || turnstone.HintOf(err) == "" {
				t.Errorf("%v (%s, %q)", err, k, turnstone.HintOf(err))
			}
		})
	}
}

func appendTo(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

func TestFilesThatComeAndGo(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("stays%d", i)), []byte("x"), 0o600))
	}
	top, err := Open(dir)
	must(t, err)
	defer top.Close()
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				p := filepath.Join(dir, fmt.Sprintf("goes%d", i%7))
				_ = os.WriteFile(p, nil, 0o600)
				_ = os.Remove(p)
			}
		}
	}()
	for range 50 {
		kids, err := top.Children(t.Context())
		if err != nil {
			t.Error(err)
		}
		n := 0
		for _, k := range kids {
			if strings.HasPrefix(k.Name, "stays") {
				n++
			}
		}
		if n != 50 {
			t.Errorf("%d files", n)
		}
	}
	close(stop)
	<-stopped
}

func TestWhatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for path, want := range map[string]struct {
		kind turnstone.Kind
		text string
	}{
		filepath.Join(dir, "none"): {turnstone.KindNotFound, "none: no such file or directory"},
		filepath.Join(dir, "file"): {turnstone.KindUnavailable, "file: not a directory"},
	} {
		_, err := Open(path)
		if turnstone.KindOf(err) != want.kind || err == nil ||
			!strings.HasSuffix(err.Error(), want.text) || turnstone.HintOf(err) == "" {
			t.Errorf("%v (%s)", err, turnstone.KindOf(err))
		}
	}
	d, err := Open(dir)
	must(t, err, d.Close())
	if _, err := d.Children(t.Context()); err == nil {
		t.Error("a closed folder can be read")
	}
}

// TestUnreadableFileIsNamed runs itself as an ordinary user if possible.
func TestUnreadableFileIsNamed(t *testing.T) {
	if os.Geteuid() == 0 {
		exe, err := os.Executable()
		must(t, err)
		dir, err := os.MkdirTemp("/tmp", "hostdir")
		must(t, err)
		defer os.RemoveAll(dir)
		copied := filepath.Join(dir, "test")
		b, err := os.ReadFile(exe)
		must(t, err, os.WriteFile(copied, b, 0o755), os.Chmod(dir, 0o777))
		out, err := exec.Command("setpriv", "--reuid=65534", "--regid=65534",
			"--clear-groups", "env", "TMPDIR="+dir,
			copied, "-test.run=^TestUnreadableFileIsNamed$", "-test.v").CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("setpriv is not installed")
		}
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0))
	d, err := Open(dir)
	must(t, err)
	defer d.Close()
	_, err = tree.Build(t.Context(), tree.NewHasher(), d, tree.BuildOptions{})
	if !errors.Is(err, unix.EACCES) ||
		!strings.Contains(err.Error(), filepath.Join(dir, "secret")) ||
		!strings.Contains(turnstone.HintOf(err), "permissions") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
}

// BenchmarkHash hashes 20,000 small files.
func BenchmarkHash(b *testing.B) {
	dir := b.TempDir()
	for i := range 200 {
		sub := filepath.Join(dir, fmt.Sprint(i))
		must(b, os.Mkdir(sub, 0o700))
		for j := range 100 {
			must(b, os.WriteFile(filepath.Join(sub, fmt.Sprint(j)),
				[]byte(strings.Repeat(fmt.Sprint(i, j), 300)), 0o600))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		d, err := Open(dir)
		must(b, err)
		if _, err := tree.Build(context.Background(), tree.NewHasher(), d,
			tree.BuildOptions{}); err != nil {
			b.Fatal(err)
		}
		must(b, d.Close())
	}
}
