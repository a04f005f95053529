package tar2erofs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

var latest = time.Unix(1767225600, 0)

// A file is a tar entry of the tests.
type file struct {
	tar.Header
	content string
}

func pack(t testing.TB, files []file) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		h := f.Header
		h.Size = int64(len(f.content))
		h.Format = tar.FormatPAX
		if !utf8.ValidString(h.Name + h.Linkname) {
			h.Format = tar.FormatGNU // PAX text is UTF-8
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatalf("%q: %v", h.Name, err)
		}
		if _, err := io.WriteString(tw, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// build makes an image of archive and returns its path.
func build(t testing.TB, archive []byte) (string, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := New(f, Options{Latest: latest, TempDir: t.TempDir(), MaxBytes: 64 << 20})
	if err := w.AddTar(bytes.NewReader(archive), nil); err != nil {
		return "", err
	}
	return f.Name(), w.Close()
}

func entryOf(kind byte, name string, mode int64) file {
	return file{Header: tar.Header{Typeflag: kind, Name: name, Mode: mode,
		ModTime: time.Unix(1600000000, 123456789)}}
}

// everything is a tree with an example of each feature that an image has to keep.
func everything() []file {
	with := func(f file, change func(*file)) file { change(&f); return f }
	long := strings.Repeat("n", 255)
	files := []file{
		entryOf(tar.TypeDir, "./", 0o755),
		entryOf(tar.TypeDir, "./bin/", 0o755),
		with(entryOf(tar.TypeReg, "./bin/su", 0o4755),
			func(f *file) { f.content = "setuid program"; f.Gid = 5 }),
		with(entryOf(tar.TypeReg, "./bin/ping", 0o755), func(f *file) {
			f.content = "capable"
			f.PAXRecords = map[string]string{
				"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
				"SCHILY.xattr.user.note":           "kept",
				"SCHILY.xattr.security.selinux":    "the host's",
			}
		}),
		with(entryOf(tar.TypeReg, "./bin/shared", 0o764), func(f *file) { // u::7,u:1000:6,g::0,m::6,o::4
			f.PAXRecords = map[string]string{"SCHILY.xattr.system.posix_acl_access": "\x02\x00\x00\x00" +
				"\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x06\x00\xe8\x03\x00\x00\x04\x00\x00\x00\xff\xff\xff\xff" +
				"\x10\x00\x06\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"}
		}),
		with(entryOf(tar.TypeLink, "./bin/ping6", 0o755), func(f *file) {
			f.Linkname = "./bin/ping"
		}),
		with(entryOf(tar.TypeLink, "./a-link", 0o755), func(f *file) {
			f.Linkname = "./bin/ping6"
		}),
		entryOf(tar.TypeDir, "./tmp/", 0o1777),
		entryOf(tar.TypeDir, "./mail/", 0o2775),
		with(entryOf(tar.TypeChar, "./tmp/null", 0o666), func(f *file) {
			f.Devmajor, f.Devminor = 1, 3
		}),
		with(entryOf(tar.TypeBlock, "./tmp/disk", 0o660), func(f *file) {
			f.Devmajor, f.Devminor = 259, 300
		}),
		entryOf(tar.TypeFifo, "./tmp/pipe", 0o600),
		with(entryOf(tar.TypeSymlink, "./lib", 0o777), func(f *file) { f.Linkname = "usr/lib" }),
		with(entryOf(tar.TypeLink, "./lib-again", 0o777), func(f *file) { f.Linkname = "lib" }),
		with(entryOf(tar.TypeSymlink, "./far", 0o777), func(f *file) {
			f.Linkname = strings.Repeat("../x", 900)
		}),
		with(entryOf(tar.TypeReg, "./"+long, 0o600),
			func(f *file) { f.content = "long"; f.Uid, f.Gid = 70000, 1<<20 }),
		entryOf(tar.TypeReg, "./empty", 0o644),
		with(entryOf(tar.TypeReg, "./block", 0o644), func(f *file) {
			f.content = strings.Repeat("b", 4096)
		}),
		with(entryOf(tar.TypeReg, "./big", 0o644), func(f *file) {
			f.content = strings.Repeat("0123456789abcdef", 100_003)
		}),
		with(entryOf(tar.TypeReg, "./late", 0o644), func(f *file) {
			f.ModTime = latest.Add(time.Hour)
		}),
		with(entryOf(tar.TypeReg, "./implied/deep/file", 0o644), func(f *file) { f.content = "x" }),
		entryOf(tar.TypeDir, "./many/", 0o755),
		entryOf(tar.TypeDir, "./\xff\xfe-not-utf8/", 0o755),
		with(entryOf(tar.TypeReg, "./\xff\xfe-not-utf8/\x80", 0o644), func(f *file) {
			f.content = "bytes"
		}),
		with(entryOf(tar.TypeLink, "./\xff\xfe-not-utf8/\x81", 0o644), func(f *file) {
			f.Linkname = "./\xff\xfe-not-utf8/\x80"
		}),
	}
	for i := range 1500 { // a folder of many blocks with many links
		f := entryOf(tar.TypeReg, fmt.Sprintf("./many/file-with-a-longer-name-%04d", i), 0o644)
		f.content = fmt.Sprint(i)
		if i%100 == 99 {
			f.Typeflag, f.Linkname, f.content = tar.TypeLink,
				fmt.Sprintf("many/file-with-a-longer-name-%04d", i-99), ""
		}
		files = append(files, f)
	}
	return files
}

// A seen is a reader's view of a path of an image.
type seen struct {
	mode     uint32 // as st_mode
	uid, gid uint32
	nlink    uint32
	ino      uint64
	rdev     uint32 // new_encode_dev
	mtime    time.Time
	size     int64
	target   string
	content  turnstone.Digest
	xattrs   map[string]string
}

// want computes from the tar entries a reader's expected view.
func want(t *testing.T, files []file) map[string]seen {
	t.Helper()
	out := map[string]seen{}
	for _, f := range files {
		path, err := cleanPath(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		if f.Typeflag == tar.TypeLink {
			to, _ := cleanPath(f.Linkname)
			out[path] = out[to]
			continue
		}
		s := seen{uid: uint32(f.Uid), gid: uint32(f.Gid), mtime: f.ModTime,
			size: int64(len(f.content)), mode: uint32(f.Mode)}
		if s.mtime.After(latest) {
			s.mtime = latest
		}
		if !utf8.ValidString(path) {
			s.mtime = s.mtime.Truncate(time.Second) // the precision of the GNU format
		}
		switch f.Typeflag {
		case tar.TypeReg:
			s.mode |= typeRegular
			s.content = turnstone.DigestBytes([]byte(f.content))
		case tar.TypeDir:
			s.mode |= typeDir
		case tar.TypeSymlink:
			s.mode, s.target, s.size = typeSymlink|0o777, f.Linkname, int64(len(f.Linkname))
		case tar.TypeFifo:
			s.mode |= typeFifo
		case tar.TypeChar:
			s.mode |= typeChar
			s.rdev, _ = device(&f.Header)
		case tar.TypeBlock:
			s.mode |= typeBlock
			s.rdev, _ = device(&f.Header)
		}
		for k, v := range f.PAXRecords {
			if name := strings.TrimPrefix(k, "SCHILY.xattr."); name != "security.selinux" {
				if s.xattrs == nil {
					s.xattrs = map[string]string{}
				}
				s.xattrs[name] = v
			}
		}
		out[path] = s
	}
	return out
}

func compare(t *testing.T, files []file, see func(path string) (seen, error)) {
	t.Helper()
	inodes := map[string]uint64{}
	for path, w := range want(t, files) {
		got, err := see(path)
		if err != nil {
			t.Errorf("%q: %v", path, err)
			continue
		}
		inodes[path] = got.ino
		if w.mode&typeMask == typeDir {
			got.size = 0
		}
		if got.mode != w.mode || got.uid != w.uid || got.gid != w.gid ||
			got.rdev != w.rdev || got.size != w.size ||
			!got.mtime.Equal(w.mtime) || got.target != w.target || got.content != w.content ||
			fmt.Sprint(got.xattrs) != fmt.Sprint(w.xattrs) {
			t.Errorf("%.60q:\n got %+v\nwant %+v", path, got, w)
		}
	}
	groups := [][]string{{"bin/ping", "bin/ping6", "a-link"}, {"lib", "lib-again"},
		{"many/file-with-a-longer-name-0100", "many/file-with-a-longer-name-0199"}}
	for _, g := range groups {
		for _, path := range g {
			got, err := see(path)
			if err != nil || got.ino != inodes[g[0]] || int(got.nlink) != len(g) {
				t.Errorf("%q: inode %d with %d names, want inode %d with %d (%v)", path, got.ino,
					got.nlink, inodes[g[0]], len(g), err)
			}
		}
	}
	if inodes["empty"] == inodes["block"] {
		t.Error("unlinked files share an inode")
	}
}

func TestRoundTripThroughTheLibrary(t *testing.T) {
	files := everything()
	path, err := build(t, pack(t, files))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	var readable []file // the library's reader accepts only names that are UTF-8
	for _, f := range files {
		if p, _ := cleanPath(f.Name); fs.ValidPath(p) {
			readable = append(readable, f)
		}
	}
	readable = append(readable, file{Header: tar.Header{Typeflag: tar.TypeDir, Name: "implied/deep",
		Mode: 0o755, ModTime: latest}})
	for i := range readable {
		// its reader ignores the bits above; the kernel's test covers them
		readable[i].Mode &= 0o777
	}
	compare(t, readable, func(path string) (seen, error) { return seeLibrary(img, path) })
}

func seeLibrary(img fs.FS, path string) (seen, error) {
	if path == "" {
		path = "."
	}
	fi, err := img.(interface {
		Lstat(string) (fs.FileInfo, error)
	}).Lstat(path)
	if err != nil {
		return seen{}, err
	}
	st := fi.Sys().(*erofs.Stat)
	s := seen{uid: st.UID, gid: st.GID, nlink: uint32(st.Nlink),
		ino: uint64(st.Ino), size: fi.Size(),
		mtime: time.Unix(int64(st.Mtime), int64(st.MtimeNs)), mode: uint32(fi.Mode().Perm())}
	for name, value := range st.Xattrs {
		if s.xattrs == nil {
			s.xattrs = map[string]string{}
		}
		if isACL(strings.TrimSuffix(name, ".")) { // the library's name
			name = strings.TrimSuffix(name, ".")
		}
		s.xattrs[name] = value
	}
	switch fi.Mode().Type() {
	case 0:
		s.mode |= typeRegular
		f, err := img.Open(path)
		if err != nil {
			return seen{}, err
		}
		defer f.Close()
		s.content, err = turnstone.DigestReader(f)
		return s, err
	case fs.ModeDir:
		s.mode |= typeDir
	case fs.ModeSymlink:
		s.mode |= typeSymlink
		s.target, err = img.(fs.ReadLinkFS).ReadLink(path)
	case fs.ModeNamedPipe:
		s.mode |= typeFifo
	case fs.ModeDevice:
		s.mode, s.rdev = s.mode|typeBlock, st.Rdev
	case fs.ModeDevice | fs.ModeCharDevice:
		s.mode, s.rdev = s.mode|typeChar, st.Rdev
	}
	return s, err
}

func TestRoundTripThroughTheKernel(t *testing.T) {
	files := everything()
	path, err := build(t, pack(t, files))
	if err != nil {
		t.Fatal(err)
	}
	root := mount(t, path)
	files = append(files, file{Header: tar.Header{Typeflag: tar.TypeDir, Name: "implied/deep",
		Mode: 0o755, ModTime: latest}})
	compare(t, files, func(path string) (seen, error) { return seeKernel(root, path) })
	n := 0
	err = filepath.WalkDir(root, func(string, fs.DirEntry, error) error { n++; return nil })
	if want := len(want(t, files)) + 1; err != nil || n != want { // and "implied"
		t.Errorf("%d names in the image, want %d (%v)", n, want, err)
	}
}

// mount loop-mounts an image read-only for the test, and skips where that is not possible.
func mount(t *testing.T, path string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	if b, _ := os.ReadFile("/proc/filesystems"); !bytes.Contains(b, []byte("erofs")) {
		t.Skip("this kernel has no EROFS")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "loop,ro", path,
		dir).CombinedOutput(); err != nil {
		if bytes.Contains(out, []byte("permission denied")) ||
			bytes.Contains(out, []byte("loop device")) {
			t.Skipf("no loop mounts here: %s", out)
		}
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := exec.Command("umount", dir).Run(); err != nil {
			t.Errorf("umount: %v", err)
		}
	})
	return dir
}

func seeKernel(root, path string) (seen, error) {
	full := root + "/" + path
	if path == "" {
		full = root
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(full, &st); err != nil {
		return seen{}, err
	}
	s := seen{mode: st.Mode, uid: st.Uid, gid: st.Gid, nlink: uint32(st.Nlink), ino: st.Ino,
		size: st.Size, mtime: time.Unix(st.Mtim.Unix())}
	if major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev); st.Rdev != 0 {
		s.rdev, _ = device(&tar.Header{Typeflag: tar.TypeChar,
			Devmajor: int64(major), Devminor: int64(minor)})
	}
	var err error
	switch st.Mode & typeMask {
	case typeRegular:
		f, err := os.Open(full)
		if err != nil {
			return seen{}, err
		}
		defer f.Close()
		if s.content, err = turnstone.DigestReader(f); err != nil {
			return seen{}, err
		}
	case typeSymlink:
		s.target, err = os.Readlink(full)
	}
	names := make([]byte, 4096)
	n, _ := unix.Llistxattr(full, names)
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:max(n, 0)]),
		"\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(full, name, value)
		if err != nil {
			return seen{}, err
		}
		if s.xattrs == nil {
			s.xattrs = map[string]string{}
		}
		s.xattrs[name] = string(value[:n])
	}
	return s, err
}

func TestSameEntriesSameBytes(t *testing.T) {
	files := everything()
	digest := func(files []file) turnstone.Digest {
		path, err := build(t, pack(t, files))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return turnstone.DigestBytes(b)
	}
	first := digest(files)
	if again := digest(files); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	// Another order of the files that are neither links nor targets of links.
	shuffled := append([]file(nil), files...)
	for i, j := 0, len(shuffled)-1; i < j; i, j = i+1, j-1 {
		if shuffled[i].Name == "./empty" || shuffled[i].Name == "./block" {
			shuffled[i], shuffled[i+1] = shuffled[i+1], shuffled[i]
		}
	}
	if other := digest(shuffled); other != first {
		t.Errorf("in another order %s instead of %s", other, first)
	}
}

func TestHostileEntries(t *testing.T) {
	link := func(name, to string) file {
		f := entryOf(tar.TypeLink, name, 0o644)
		f.Linkname = to
		return f
	}
	symlink := func(name, to string) file {
		f := link(name, to)
		f.Typeflag = tar.TypeSymlink
		return f
	}
	for name, files := range map[string][]file{
		"leaves the root":         {entryOf(tar.TypeReg, "../../etc/passwd", 0o644)},
		"leaves it in the middle": {entryOf(tar.TypeReg, "a/../../b", 0o644)},
		"is absolute":             {entryOf(tar.TypeReg, "/etc/passwd", 0o644)},
		"through a symlink": {symlink("out", "/etc"),
			entryOf(tar.TypeReg, "out/passwd", 0o644)},
		"through a file": {entryOf(tar.TypeReg, "f", 0o644),
			entryOf(tar.TypeReg, "f/x", 0o644)},
		"folder over a symlink": {symlink("out", "/etc"), entryOf(tar.TypeDir, "out", 0o755)},
		"twice": {entryOf(tar.TypeReg, "f", 0o644),
			entryOf(tar.TypeReg, "./f", 0o644)},
		"file over a folder": {entryOf(tar.TypeDir, "d", 0o755),
			entryOf(tar.TypeReg, "d", 0o644)},
		"link to nothing":  {link("l", "nothing")},
		"link to itself":   {link("l", "l")},
		"link out":         {link("l", "../../etc/passwd")},
		"link to a folder": {entryOf(tar.TypeDir, "d", 0o755), link("l", "d")},
		"root as a file":   {entryOf(tar.TypeSymlink, ".", 0o644)},
		"name too long":    {entryOf(tar.TypeReg, strings.Repeat("n", 256), 0o644)},
		"path too long":    {entryOf(tar.TypeReg, strings.Repeat("n/", 2100)+"n", 0o644)},
		"target too long":  {symlink("l", strings.Repeat("t", 5000))},
		"device number": {
			{Header: tar.Header{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1 << 20}}},
		"attributes without bound": {{Header: tar.Header{Typeflag: tar.TypeReg, Name: "f",
			PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 64<<10)}}}},
		"more bytes than the limit": {{Header: tar.Header{Typeflag: tar.TypeReg, Name: "f"},
			content: strings.Repeat("x", 65<<20)}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := build(t, pack(t, files)); err == nil {
				t.Fatal("was taken")
			} else {
				t.Logf("%.120v", err)
			}
		})
	}
}

func TestTruncatedTar(t *testing.T) {
	f := entryOf(tar.TypeReg, "f", 0o644)
	f.content = strings.Repeat("x", 4096)
	archive := pack(t, []file{f})
	if _, err := build(t, archive[:1500]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("half a file: %v", err)
	}
}

func FuzzAddTar(f *testing.F) {
	for _, some := range [][]file{everything()[1:6], everything()[6:13], everything()[19:24]} {
		f.Add(pack(f, some))
	}
	f.Add(pack(f, []file{entryOf(tar.TypeReg, "../../etc/passwd", 0o644)}))
	f.Fuzz(func(t *testing.T, archive []byte) {
		path, err := build(t, archive)
		if err != nil {
			return
		}
		img, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		if _, err := erofs.Open(img); err != nil {
			t.Fatalf("an image that was written cannot be opened: %v", err)
		}
	})
}
