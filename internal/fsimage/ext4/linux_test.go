package ext4_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/testsize"
)

// scratchOptions are those of a sandbox's scratch disk (internal/driver/qemu/scratch.go).
var scratchOptions = []string{"-m", "0", "-b", "4096", "-i", "8192", "-O",
	"^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2", "-E",
	"lazy_itable_init=1,nodiscard,root_owner=0:0"}

// mkfs makes a file system in a file that is removed with the test.
func mkfs(t testing.TB, size int64, options ...string) string {
	t.Helper()
	program, err := exec.LookPath("mke2fs")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/mke2fs"); err != nil {
			t.Skip("no mke2fs: apt-get install e2fsprogs")
		}
	}
	path := filepath.Join(t.TempDir(), "disk.ext4")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, size))
	args := append([]string{"-q", "-F", "-t", "ext4"}, options...)
	if out, err := exec.Command(program, append(args, path)...).CombinedOutput(); err != nil {
		t.Fatalf("mke2fs: %v: %s", err, out)
	}
	return path
}

// mount mounts an image by a loop device; it skips the test where that is not possible.
func mount(t testing.TB, image string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop,noatime,nodev", image,
		dir).CombinedOutput(); err != nil {
		t.Skipf("no loop mounts here: %s", out)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

const (
	fiFreeze = 0xc0045877 // FIFREEZE of linux/fs.h
	fiThaw   = 0xc0045878
)

// freeze writes everything to the disk and freezes the file system until the test ends, as the
// agent does for a commit.
func freeze(t *testing.T, dir string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.IoctlSetInt(fd, fiFreeze, 0); err != nil {
		t.Fatalf("FIFREEZE: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.IoctlSetInt(fd, fiThaw, 0); err != nil {
			t.Errorf("FITHAW: %v", err)
		}
	})
}

// everything creates a file of each kind in dir, as far as this user may.
func everything(t *testing.T, dir string, sparse int64) {
	t.Helper()
	at := func(name string) string { return join(dir, name) }
	write := func(name string, size int) {
		b := make([]byte, size)
		r := rand.New(rand.NewPCG(uint64(size), uint64(len(name))))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		must(t, os.WriteFile(at(name), b, 0o644))
	}
	for _, size := range []int{0, 1, 59, 4095, 4096, 4097, 65536, 3 << 20} {
		write(fmt.Sprintf("file-%d", size), size)
	}
	must(t, os.Chmod(at("file-1"), 0o4755|os.ModeSetuid|os.ModeSticky))
	must(t, unix.Chmod(at("file-59"), 0o7777))
	must(t, os.Mkdir(at("empty"), 0o711))
	write(strings.Repeat("n", 255), 10)
	write("not utf-8 \xff\xfe\n\t", 10)
	write(".wh.odd", 3)
	for _, n := range []int{1, 58, 59, 60, 61, 255, 1023, 4000} {
		// more than a block
		if err := os.Symlink(strings.Repeat("t", n),
			at(fmt.Sprintf("link-%d", n))); !errors.Is(err, unix.ENAMETOOLONG) {
			must(t, err)
		}
	}
	must(t, os.Symlink("/nowhere/\xff", at("dangling")))
	deep := dir
	for range 60 {
		deep = join(deep, "deeper-and-deeper")
	}
	must(t, os.MkdirAll(deep, 0o755))
	must(t, os.WriteFile(join(deep, "bottom"), []byte("here"), 0o600))
	must(t, os.Link(at("file-4096"), at("hard-1")))
	must(t, os.Link(at("file-4096"), join(deep, "hard-2")))
	must(t, unix.Mkfifo(at("fifo"), 0o640))
	holes(t, at("sparse"), sparse)
	times(t, dir)
	if os.Geteuid() == 0 {
		privileged(t, dir)
	}
}

// times sets times before 1970, after 2038, and with nanoseconds.
func times(t *testing.T, dir string) {
	for i, sec := range []int64{-2147483648, -1, 0, 1, 2147483647, 2147483648, 4294967296,
		10737418239, 12884901888} {
		path := join(dir, fmt.Sprintf("time-%d", i))
		must(t, os.WriteFile(path, nil, 0o644))
		ts := []unix.Timespec{{Sec: sec, Nsec: 1}, {Sec: sec, Nsec: 999999999}}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, 0))
	}
}

// holes creates a file that consists mostly of holes.
func holes(t *testing.T, path string, size int64) {
	f, err := os.Create(path)
	must(t, err)
	must(t, f.Truncate(size))
	for _, off := range []int64{4096 * 3, 1<<20 + 17, size / 2, size - 5} {
		_, err := f.WriteAt([]byte("data!"), off)
		must(t, err)
	}
	must(t, f.Close())
}

// privileged creates files that only root can create.
func privileged(t *testing.T, dir string) {
	at := func(name string) string { return join(dir, name) }
	for i, dev := range [][2]uint32{{0, 0}, {1, 3}, {255, 255}, {256, 1},
		{8, 256}, {4095, 1048575}} {
		kind := uint32(unix.S_IFCHR)
		if i%2 == 1 {
			kind = unix.S_IFBLK
		}
		must(t, unix.Mknod(at(fmt.Sprintf("device-%d", i)), kind|0o600,
			int(unix.Mkdev(dev[0], dev[1]))))
	}
	must(t, unix.Lchown(at("file-4097"), 70000, 4000000000))
	must(t, unix.Lchown(at("link-1"), 65536, 65535))
	set := func(name, attr string, value []byte) {
		must(t, unix.Lsetxattr(at(name), attr, value, 0))
	}
	set("file-0", "user.note", []byte("hello"))
	set("file-0", "user.empty", nil)
	set("file-0", "user."+strings.Repeat("x", 250), []byte("long name"))
	set("file-1", "user.large", bytes.Repeat([]byte("v"), 900)) // in its own block
	set("file-4095", "security.capability",
		[]byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	set("empty", "trusted.overlay.opaque", []byte("y"))
	set("empty", "user.dir", []byte("d"))
	set("link-1", "trusted.on-a-link", []byte("t"))
	set("fifo", "trusted.on-a-fifo", []byte("f"))
	entry := func(tag, perm uint16, id uint32) []byte {
		return []byte{byte(tag), byte(tag >> 8), byte(perm), 0, byte(id), byte(id >> 8),
			byte(id >> 16), byte(id >> 24)}
	}
	acl := bytes.Join([][]byte{{2, 0, 0, 0}, entry(1, 7, 0xffffffff), entry(2, 5, 70000),
		entry(4, 5, 0xffffffff), entry(8, 1, 7), entry(16, 7, 0xffffffff),
		entry(32, 0, 0xffffffff)}, nil)
	set("file-65536", "system.posix_acl_access", acl)
	set("empty", "system.posix_acl_default", acl)
}

// Reading a frozen file system returns what the kernel shows.
func TestReadsWhatLinuxWrote(t *testing.T) {
	for name, options := range map[string][]string{
		"scratch": scratchOptions,
		"1k":      {"-b", "1024", "-O", "^has_journal"},
		"plain":   {"-E", "lazy_itable_init=1"},
		"ext3": {"-O", "^has_journal,^extent,^64bit,^flex_bg,^extra_isize,^metadata_csum", "-I",
			"128"},
	} {
		t.Run(name, func(t *testing.T) {
			image := mkfs(t, 1<<30, options...)
			dir := mount(t, image)
			if name == "ext3" {
				ordinary(t, dir)
			} else {
				sparse := int64(300 << 20)
				if name == "scratch" && !testing.Short() {
					sparse = testsize.Of(sparse, 5<<30)
				}
				everything(t, dir, sparse)
			}
			fragmented(t, dir)
			crowded(t, join(dir, "crowd"), 3000)
			want := hostLines(t, dir)
			freeze(t, dir)
			got, err := imageLines(t.Context(), open(t, image))
			must(t, err)
			compare(t, got, want)
		})
	}
}

// ordinary creates files that a file system without extents and large inodes supports.
func ordinary(t *testing.T, dir string) {
	must(t, os.WriteFile(join(dir, "a"), []byte("a"), 0o644))
	must(t, os.Symlink("a", join(dir, "s")))
	must(t, os.Symlink(strings.Repeat("t", 500), join(dir, "slow")))
	holes(t, join(dir, "sparse"), 200<<20)
	b := make([]byte, 9<<20) // up to blocks of blocks of blocks
	for i := range b {
		b[i] = byte(i >> 12)
	}
	must(t, os.WriteFile(join(dir, "large"), b, 0o644))
}

// fragmented creates a file with an extent tree of some depth, unwritten extents, and a file
// without extents.
func fragmented(t *testing.T, dir string) {
	f, err := os.Create(join(dir, "fragmented"))
	must(t, err)
	for i := range int64(3000) {
		_, err := f.WriteAt([]byte{byte(i), 1, 2}, i*8192)
		must(t, err)
	}
	must(t, f.Sync())
	must(t, f.Close())
	f, err = os.Create(join(dir, "unwritten"))
	must(t, err)
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<20); err == nil {
		_, err = f.WriteAt([]byte("in the middle"), 300000)
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20))
	}
	must(t, f.Close())
}

// crowded creates a directory of n files, with some removed again.
func crowded(t testing.TB, dir string, n int) {
	must(t, os.Mkdir(dir, 0o755))
	for i := range n {
		must(t, os.WriteFile(fmt.Sprintf("%s/%d-%s", dir, i,
			strings.Repeat("z", i%100)), nil, 0o644))
	}
	for i := 0; i < n; i += 7 {
		must(t, os.Remove(fmt.Sprintf("%s/%d-%s", dir, i, strings.Repeat("z", i%100))))
	}
}

// A directory of so many files that Linux hashes it.
func TestLargeDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 100,000 files")
	}
	image := mkfs(t, 2<<30, scratchOptions...)
	dir := mount(t, image)
	crowded(t, join(dir, "crowd"), testsize.Of(30_000, 100_000))
	want := hostLines(t, dir)
	freeze(t, dir)
	got, err := imageLines(t.Context(), open(t, image))
	must(t, err)
	compare(t, got, want)
}

// mke2fs's image of a folder, which requires no root.
func TestReadsWhatMke2fsWrote(t *testing.T) {
	src := t.TempDir()
	everything(t, src, 100<<20)
	// mke2fs keeps no nanoseconds and no times past 2038, and hard links and attributes depending
	// on its version: those are compared on images that Linux wrote.
	entries, err := os.ReadDir(src)
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "time-") {
			must(t, os.Remove(join(src, e.Name())))
		}
	}
	whole := func(path string) {
		ts := []unix.Timespec{{Sec: 1700000000}, {Sec: 1700000000}}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW))
	}
	must(t, filepath.WalkDir(src, func(path string, _ os.DirEntry, err error) error {
		whole(path)
		return err
	}))
	image := mkfs(t, 256<<20, append([]string{"-d", src}, scratchOptions...)...)
	got, err := imageLines(t.Context(), open(t, image))
	must(t, err)
	compare(t, got[1:], hostLines(t, src)[1:])
}
