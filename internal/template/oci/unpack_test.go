package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
	"github.com/google/go-containerregistry/pkg/authn"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// bash replaces a shell in images of tests.
var bash = ocitest.Program("bin/bash", "#!")

// client returns a client with a new folder, without credentials, and with short timeouts.
func client(t testing.TB) *Client {
	return New(Options{Dir: t.TempDir(), Keychain: noKeys{}, Stall: 2 * time.Second,
		Pause: time.Millisecond, Retries: 2})
}

type noKeys struct{}

func (noKeys) Resolve(authn.Resource) (authn.Authenticator, error) { return authn.Anonymous, nil }

// root is a root image of a test.
type root struct {
	fs.FS
	bytes []byte
	res   *Result
	log   string
}

// unpackAt pulls a reference into an image.
func unpackAt(t testing.TB, c *Client, ref string) (*root, error) {
	t.Helper()
	r, err := ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := c.Resolve(t.Context(), r)
	if err != nil {
		return nil, err
	}
	return unpackImage(t, c, img)
}

func unpackImage(t testing.TB, c *Client, img *Image) (*root, error) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var log bytes.Buffer
	workdir := img.Workdir
	if workdir == "" {
		workdir = "/workspace"
	}
	res, err := c.Unpack(t.Context(),
		Request{Image: img, Out: out, TempDir: t.TempDir(), Workdir: workdir, Log: &log,
			Bash: func(context.Context) ([]byte, error) { return []byte("static"), nil }})
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	fsys, err := erofs.Open(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return &root{fsys, b, res, log.String()}, nil
}

// unpack creates an image of layers and its root image.
func unpack(t testing.TB, config ocitest.Config, layers ...[]byte) (*root, error) {
	t.Helper()
	reg := ocitest.Serve(t, nil)
	reg.Push(t, "test/image:1", ocitest.Image(t, config, layers...))
	return unpackAt(t, client(t), reg.Host+"/test/image:1")
}

// list returns all paths except those of every image, with types, links and contents.
func (r *root) list(t testing.TB) string {
	t.Helper()
	var out strings.Builder
	err := fs.WalkDir(r.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch path {
		case ".", "dev", "proc", "sys", "run", "tmp", "root", "workspace", "bin", "bin/bash",
			"bin/sh", "etc", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/machine-id":
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch info.Mode().Type() {
		case fs.ModeDir:
			fmt.Fprintf(&out, "%s/\n", path)
		case fs.ModeSymlink:
			target, err := fs.ReadLink(r.FS, path)
			fmt.Fprintf(&out, "%s -> %s\n", path, target)
			return err
		case 0:
			b, err := fs.ReadFile(r.FS, path)
			fmt.Fprintf(&out, "%s = %s\n", path, b)
			return err
		default:
			fmt.Fprintf(&out, "%s %s\n", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestLayers checks how layers affect one another.
func TestLayers(t *testing.T) {
	base := []ocitest.Entry{bash, ocitest.Dir("a"), ocitest.File("a/x", "1"),
		ocitest.File("a/y", "2"), ocitest.Dir("a/deep"), ocitest.File("a/deep/z", "3")}
	for _, c := range []struct {
		name  string
		above []ocitest.Entry
		want  string
	}{
		{"nothing", nil, "a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\n"},
		{"replaced", []ocitest.Entry{ocitest.File("a/x", "new")},
			"a/\na/deep/\na/deep/z = 3\na/x = new\na/y = 2\n"},
		{"whiteout of a file", []ocitest.Entry{ocitest.File("a/.wh.x", "")},
			"a/\na/deep/\na/deep/z = 3\na/y = 2\n"},
		{"whiteout of a folder", []ocitest.Entry{ocitest.File(".wh.a", "")}, ""},
		{"whiteout and new", []ocitest.Entry{ocitest.File(".wh.a", ""), ocitest.File("a/n", "4")},
			"a/\na/n = 4\n"},
		{"new and whiteout", []ocitest.Entry{ocitest.File("a/n", "4"), ocitest.File(".wh.a", "")},
			"a/\na/n = 4\n"},
		{"whiteout of what the layer has", []ocitest.Entry{ocitest.File("a/x", "new"),
			ocitest.File("a/.wh.x", "")}, "a/\na/deep/\na/deep/z = 3\na/x = new\na/y = 2\n"},
		{"opaque", []ocitest.Entry{ocitest.Dir("a"), ocitest.File("a/.wh..wh..opq", ""),
			ocitest.File("a/n", "4")}, "a/\na/n = 4\n"},
		{"opaque last", []ocitest.Entry{ocitest.File("a/deep/n", "4"),
			ocitest.File("a/.wh..wh..opq", "")}, "a/\na/deep/\na/deep/n = 4\n"},
		{"whiteout of nothing", []ocitest.Entry{ocitest.File("b/.wh.none", ""),
			ocitest.File(".wh.none", "")}, "a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\n"},
		{"the tool's own", []ocitest.Entry{ocitest.Dir(".wh..wh.plnk"),
			ocitest.File(".wh..wh.aufs", "")}, "a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\n"},
		{"file for a folder", []ocitest.Entry{ocitest.File("a", "file")}, "a = file\n"},
		{"folder for a file", []ocitest.Entry{ocitest.Dir("a/x"), ocitest.File("a/x/n", "4")},
			"a/\na/deep/\na/deep/z = 3\na/x/\na/x/n = 4\na/y = 2\n"},
		{"folder, file, folder", []ocitest.Entry{ocitest.File("a", "file"), ocitest.Dir("a"),
			ocitest.File("a/n", "4")}, "a/\na/n = 4\n"},
		{"twice", []ocitest.Entry{ocitest.File("n", "4"), ocitest.File("n", "5")},
			"a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\nn = 5\n"},
		{"absolute", []ocitest.Entry{ocitest.File("/n", "4"), ocitest.File("./m", "5")},
			"a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\nm = 5\nn = 4\n"},
		{"link to a lower layer",
			[]ocitest.Entry{ocitest.Link("n", "a/x"), ocitest.File(".wh.a", "")}, "n = 1\n"},
		{"link to itself", []ocitest.Entry{ocitest.Link("a/x", "a/x")},
			"a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\n"},
		{"link to what is replaced", []ocitest.Entry{ocitest.File("n", "4"), ocitest.Link("m", "n"),
			ocitest.File("n", "5")}, "a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\nm = 4\nn = 5\n"},
		{"through a link", []ocitest.Entry{ocitest.Symlink("l", "a/deep"), ocitest.File("l/n",
			"4")}, "a/\na/deep/\na/deep/n = 4\na/deep/z = 3\na/x = 1\na/y = 2\nl -> a/deep\n"},
		{"out of the root through a link",
			[]ocitest.Entry{ocitest.Symlink("l", "../../../../a"), ocitest.File("l/n", "4")},
			"a/\na/deep/\na/deep/z = 3\na/n = 4\na/x = 1\na/y = 2\nl -> ../../../../a\n"},
		{"through an absolute link", []ocitest.Entry{ocitest.Symlink("a/l", "/a/deep"),
			ocitest.File("a/l/../n", "4")}, "error: leaves the image's root"},
		{"through a link to nothing",
			[]ocitest.Entry{ocitest.Symlink("l", "/v/w"), ocitest.File("l/n", "4")},
			"a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\nl -> /v/w\nv/\nv/w/\nv/w/n = 4\n"},
		{"folder for a link", []ocitest.Entry{ocitest.Symlink("l", "a"), ocitest.Dir("l"),
			ocitest.File("l/n", "4")},
			"a/\na/deep/\na/deep/z = 3\na/x = 1\na/y = 2\nl/\nl/n = 4\n"},
		{"climbs", []ocitest.Entry{ocitest.File("../../etc/passwd", "x")},
			"error: leaves the image's root"},
		{"climbs from within", []ocitest.Entry{ocitest.File("a/../../etc/passwd", "x")},
			"error: leaves the image's root"},
		{"link that climbs", []ocitest.Entry{ocitest.Link("n", "../../etc/passwd")},
			"error: leaves the image's root"},
		{"link to nothing", []ocitest.Entry{ocitest.Link("n", "etc/none")},
			"error: does not precede it"},
		{"link to a folder", []ocitest.Entry{ocitest.Link("n", "a")},
			"error: is a link to the folder"},
		{"links in a circle", []ocitest.Entry{ocitest.Symlink("l", "m"), ocitest.Symlink("m", "l"),
			ocitest.File("l/n", "")}, "error: too many symbolic links"},
		{"through a file", []ocitest.Entry{ocitest.File("a/x/n", "")}, "error: leads through"},
		{"whiteout of ..", []ocitest.Entry{ocitest.File("a/.wh...", "")},
			"error: whiteout of no file"},
		{"whiteout of nothing at all", []ocitest.Entry{ocitest.File("a/.wh.", "")},
			"error: whiteout of no file"},
		{"root as a file", []ocitest.Entry{{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: ".",
			Linkname: "/"}}}, "error: root is not a folder"},
		{"a long name", []ocitest.Entry{ocitest.File(strings.Repeat("n", 256), "")},
			"error: too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := unpack(t, ocitest.Config{}, ocitest.Tar(t, base...),
				ocitest.Tar(t, c.above...))
			if want, ok := strings.CutPrefix(c.want, "error: "); ok {
				if err == nil || !strings.Contains(err.Error(), want) ||
					turnstone.KindOf(err) != turnstone.KindInvalid {
					t.Fatalf("%v, want %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := r.list(t); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

// TestAttributes checks the attributes that files keep.
func TestAttributes(t *testing.T) {
	when := time.Unix(1600000000, 123456789)
	odd := "odd-\xff\xfe\n-name"
	r, err := unpack(t, ocitest.Config{User: "ana:staff", Workdir: "/home/ana/work"},
		ocitest.Tar(t, bash,
			ocitest.File("etc/passwd",
				"root:x:0:0::/root:/bin/sh\nana:x:1000:1001::/home/ana:/bin/sh\n"),
			ocitest.File("etc/group", "staff:x:50:\n"),
			ocitest.Entry{Header: tar.Header{Name: "suid", Mode: 0o4755, Uid: 7, Gid: 8,
				ModTime: when,
				Format:  tar.FormatPAX,
				PAXRecords: map[string]string{"SCHILY.xattr.user.color": "red",
					"SCHILY.xattr.security.selinux":    "host",
					"SCHILY.xattr.user.overlay.opaque": "y"}},
				Content: "s"},
			ocitest.Entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666,
				Devmajor: 1, Devminor: 3}},
			ocitest.Entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "hide", Mode: 0o666}},
			ocitest.Entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o600}},
			ocitest.Entry{Header: tar.Header{Name: odd, Format: tar.FormatGNU}, Content: "o"},
			ocitest.File("dev/sda", "content"), ocitest.File("proc/x", ""),
			ocitest.File("etc/hostname", "of the builder"), ocitest.File("tmp/kept", "k"),
			ocitest.Link("suid2", "suid"), ocitest.Symlink("sl", "nowhere"),
			ocitest.Link("sl2", "sl"),
		))
	if err != nil {
		t.Fatal(err)
	}
	stat := func(name string) *erofs.Stat {
		t.Helper()
		info, err := fs.Lstat(r.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*erofs.Stat)
	}
	s := stat("suid")
	if s.Mode&fs.ModeSetuid == 0 || s.Mode.Perm() != 0o755 || s.UID != 7 || s.GID != 8 ||
		int64(s.Mtime) != when.Unix() || s.MtimeNs != 123456789 || s.Nlink != 2 {
		t.Errorf("suid: %+v", s)
	}
	if len(s.Xattrs) != 1 || s.Xattrs["user.color"] != "red" {
		t.Errorf("xattrs: %v", s.Xattrs)
	}
	if two := stat("suid2"); two.Ino != s.Ino {
		t.Errorf("the hard link has inode %d, not %d", two.Ino, s.Ino)
	}
	if two := stat("sl2"); two.Ino != stat("sl").Ino {
		t.Error("the hard link of a symbolic link is another file")
	}
	if n := stat("null"); n.Mode.Type() != fs.ModeDevice|fs.ModeCharDevice || n.Rdev != 1<<8|3 {
		t.Errorf("null: %+v", n)
	}
	if _, err := fs.Lstat(r.FS, "hide"); err == nil || !strings.Contains(r.log, "hide") {
		t.Errorf("a device 0:0 was kept, or not told of: %q", r.log)
	}
	found := false
	entries, err := fs.ReadDir(r.FS, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		found = found || e.Name() == odd
	}
	if !found {
		t.Errorf("the name that is no UTF-8 is not there: %v", entries)
	}
	for _, dir := range []string{"dev", "proc", "sys", "run"} {
		if in, err := fs.ReadDir(r.FS, dir); err != nil || len(in) > 0 {
			t.Errorf("%s: %v, %v", dir, in, err)
		}
	}
	if b, err := fs.ReadFile(r.FS, "etc/hostname"); string(b) != "turn\n" {
		t.Errorf("host name %q, %v", b, err)
	}
	if w := stat("home/ana/work"); !w.Mode.IsDir() || w.UID != 1000 || w.GID != 50 {
		t.Errorf("the working directory is %+v", w)
	}
	if tmp := stat("tmp"); tmp.Mode.Perm() != 0o755 && tmp.Mode.Perm() != 0o777 {
		t.Errorf("tmp: %v", tmp.Mode)
	}
	if b, err := fs.ReadFile(r.FS, "tmp/kept"); string(b) != "k" {
		t.Errorf("tmp/kept: %q, %v", b, err)
	}
}

// TestSame checks that the same layers result in the same bytes, also if they are packed in another
// way.
func TestSame(t *testing.T) {
	layers := [][]byte{ocitest.Tar(t, bash, ocitest.File("b", "2"), ocitest.File("a", "1"),
		ocitest.Link("z", "a")), ocitest.Tar(t, ocitest.File("c/d", "3"))}
	var first *root
	for range 3 {
		r, err := unpack(t, ocitest.Config{}, layers...)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = r
		} else if !bytes.Equal(first.bytes, r.bytes) {
			t.Error("the same image became another one")
		}
	}
	if first.res.Files < 10 || first.res.Bytes == 0 || first.res.AddedBash {
		t.Errorf("%+v", first.res)
	}
}

// TestShells checks that steps find a bash and a sh.
func TestShells(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries []ocitest.Entry
		bash    string // a link's target, or content
		sh      string
		added   bool
	}{
		{"both", []ocitest.Entry{bash, ocitest.Program("bin/sh", "dash")}, "#!", "dash", false},
		{"usr merged", []ocitest.Entry{ocitest.Symlink("bin", "usr/bin"),
			ocitest.Program("usr/bin/bash", "B"), ocitest.Symlink("usr/bin/sh", "bash")}, "B",
			"B", false},
		{"elsewhere", []ocitest.Entry{ocitest.Program("usr/local/bin/bash", "L")}, "L", "L", false},
		{"none", []ocitest.Entry{ocitest.Program("bin/busybox", "bb"),
			ocitest.Symlink("bin/sh", "/bin/busybox")}, "static", "bb", true},
		{"nothing at all", nil, "static", "static", true},
		{"not to be run", []ocitest.Entry{ocitest.File("bin/bash", "text")}, "static",
			"static", true},
		{"a link to nothing", []ocitest.Entry{ocitest.Symlink("bin", "usr/bin"),
			ocitest.Symlink("usr/bin/bash", "/none")}, "static", "static", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := unpack(t, ocitest.Config{}, ocitest.Tar(t, c.entries...))
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{"bin/bash": c.bash, "bin/sh": c.sh} {
				b, err := fs.ReadFile(r.FS, name)
				if err != nil || string(b) != want {
					t.Errorf("%s is %q, %v; want %q", name, b, err, want)
				}
			}
			if r.res.AddedBash != c.added {
				t.Errorf("a bash was added: %v", r.res.AddedBash)
			}
		})
	}
}

// TestUsers checks that a user must exist.
func TestUsers(t *testing.T) {
	passwd := ocitest.File("etc/passwd", "ana:x:1000:1001::/:/\nbroken\nbad:x:y:z\n")
	for user, want := range map[string]string{"": "", "ana": "", "0": "", "12345:67": "",
		"ana:1": "", "nobody": `user "nobody"`, "ana:none": `group "none"`,
		"bad": `user "bad"`, "-1": `user "-1"`, "99999999999": "user"} {
		_, err := unpack(t, ocitest.Config{User: user}, ocitest.Tar(t, bash, passwd))
		if want == "" && err != nil || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", user, err)
		}
	}
}

// TestManyFiles: 100,000 entries.
func TestManyFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	var entries []ocitest.Entry
	for i := range 100_000 {
		entries = append(entries,
			ocitest.File(fmt.Sprintf("d%d/e%d/f%d", i%10, i%1000, i), "content"))
	}
	start := time.Now()
	r, err := unpack(t, ocitest.Config{}, ocitest.Tar(t, append(entries, bash)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files in %s, an image of %d bytes", r.res.Files, time.Since(start), len(r.bytes))
	if r.res.Files < 101_000 {
		t.Errorf("%d files", r.res.Files)
	}
}

// TestLimits checks that an image beyond the limits is rejected before any of it is written.
func TestLimits(t *testing.T) {
	layer := ocitest.Tar(t, ocitest.File("a/b/c/d", ""), ocitest.File("e", ""))
	for name, l := range map[string]limits{"nodes": {4, 1 << 20, 1 << 20},
		"meta": {100, 3, 1 << 20}, "steps": {100, 1 << 20, 2}} {
		tree := newTree(l)
		tree.layer = 0
		s, err := openLayer(t.Context(), spool(t, layer), int64(len(layer)), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		if err := tree.read(s, int64(len(layer)), &n); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
}

// spool puts b into a file without a name.
func spool(t testing.TB, b []byte) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
