package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/testsize"
)

func openDirFD(t testing.TB, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// scratchDisk creates a scratch disk like a microVM's and mounts it; it skips the test if that is
// impossible.
func scratchDisk(t testing.TB) (image, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	image, dir = filepath.Join(t.TempDir(), "disk.ext4"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 1<<30))
	mke2fs := exec.Command("/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-b", "4096",
		"-O", "^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2", "-E",
		"lazy_itable_init=1,nodiscard,root_owner=0:0", image)
	if out, err := mke2fs.CombinedOutput(); err != nil {
		t.Skipf("mke2fs: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop,nodev", image,
		dir).CombinedOutput(); err != nil {
		t.Skipf("no loop mounts here: %s", out)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return image, dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestExportIsTheDisk checks that the export of an upper directory gives the same tree as the
// host's read of its disk.
func TestExportIsTheDisk(t *testing.T) {
	image, disk := scratchDisk(t)
	for round := range testsize.Of(4, 10) {
		t.Run(fmt.Sprint(round), func(t *testing.T) { exportRound(t, image, disk, uint64(round)) })
	}
}

func exportRound(t *testing.T, image, disk string, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	dir := filepath.Join(disk, fmt.Sprint(seed))
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"", "lower", "upper", "work", "merged"} {
		must(t, os.Mkdir(at(d), 0o755))
	}
	for range 40 {
		change(r, at("lower"))
	}
	opts := "redirect_dir=on,metacopy=off,index=on,xino=off," +
		fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", at("lower"), at("upper"), at("work"))
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, opts); err != nil {
		t.Skipf("no overlay here: %v", err)
	}
	defer func() { _ = unix.Unmount(at("merged"), unix.MNT_DETACH) }()
	for range r.IntN(120) {
		change(r, at("merged"))
	}
	var stream bytes.Buffer
	entries, err := exportDir(t.Context(), openDirFD(t, at("upper")), procFDs, &stream)
	must(t, err)
	u, err := upperdir.Read(t.Context(), &stream, t.TempDir(),
		upperdir.Options{Entries: int(entries)})
	must(t, err)
	defer func() { _ = u.Close() }()

	fd := openDirFD(t, disk)
	must(t, unix.IoctlSetInt(fd, fiFreeze, 0))
	defer func() { must(t, errors.Join(unix.IoctlSetInt(fd, fiThaw, 0), unix.Close(fd))) }()
	f, err := os.Open(image)
	must(t, err)
	defer func() { _ = f.Close() }()
	fs, err := ext4.Open(f, 1<<30)
	must(t, err)
	lower, err := fs.Lookup(fmt.Sprintf("%d/lower", seed))
	must(t, err)
	w := treetest.NewStore()
	parent, err := tree.Build(t.Context(), w, lower, tree.BuildOptions{})
	must(t, err)
	onDisk, err := fs.Lookup(fmt.Sprintf("%d/upper", seed))
	must(t, err)
	want, wantStats, err := layer.Apply(t.Context(), w, parent, onDisk, layer.Options{})
	must(t, err)
	got, stats, err := layer.Apply(t.Context(), w, parent, u.Root(), layer.Options{})
	must(t, err)
	if got != want || stats != wantStats {
		t.Errorf("%+v, on the disk %+v\ngot\n%s\nwant\n%s", stats, wantStats,
			strings.Join(treetest.List(t, w, got), "\n"),
			strings.Join(treetest.List(t, w, want), "\n"))
	}
}

// change makes a random change below root, and ignores errors.
func change(r *rand.Rand, root string) {
	pick := func(names ...string) string { return names[r.IntN(len(names))] }
	name := func() string {
		return pick("a", "b", "c", "a-b", "\xff", "a b",
			strings.Repeat("n", 200))
	}
	p, q := root, root
	for _, at := range []*string{&p, &q} {
		for range r.IntN(4) {
			if st, err := os.Lstat(filepath.Join(*at, name())); err == nil && st.IsDir() {
				*at = filepath.Join(*at, st.Name())
			}
		}
		*at = filepath.Join(*at, name())
	}
	data := strings.Repeat(pick("x", "yy", "\x00", ""), 1+r.IntN(5000))
	regular := func() bool {
		st, err := os.Lstat(p)
		return err != nil || st.Mode().IsRegular()
	}
	switch r.IntN(18) {
	case 0, 1, 2:
		if regular() { // not into FIFOs and devices
			_ = os.WriteFile(p, []byte(data), 0o640)
		}
	case 3, 4, 5:
		_ = os.Mkdir(p, 0o2750)
	case 6:
		_ = os.RemoveAll(p)
	case 7:
		if os.RemoveAll(p) == nil { // the directory hides the files that were there
			_ = os.Mkdir(p, 0o755)
			_ = os.WriteFile(filepath.Join(p, name()), []byte(data), 0o644)
		}
	case 8:
		_ = os.Symlink(data[:min(len(data), 90)]+"t", p)
	case 9:
		_ = os.Rename(p, q)
	case 10, 11:
		_ = os.Link(p, q)
	case 12:
		_ = os.Lchown(p, r.IntN(2), 3<<20)
	case 13:
		_ = unix.Lsetxattr(p, pick("user.a", "user.a=b", "trusted.c"),
			[]byte(data[:min(len(data), 50)]), 0)
	case 14:
		kinds := []uint32{unix.S_IFIFO, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFSOCK}
		_ = unix.Mknod(p, kinds[r.IntN(len(kinds))]|0o600,
			int(unix.Mkdev(uint32(1+r.IntN(300)), 3<<16)))
	case 15:
		ts := unix.Timespec{Sec: int64(r.IntN(1<<32)) - 1<<31, Nsec: int64(r.IntN(1e9))}
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	case 16, 17: // a large file, with holes or without
		if !regular() {
			return
		}
		f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		for range r.IntN(6) {
			_, _ = f.WriteAt(bytes.Repeat([]byte{byte(r.IntN(3))}, r.IntN(600<<10)),
				r.Int64N(9<<20))
		}
	}
}

// A file with too many attributes is reported, by name.
func TestExportTooManyAttributes(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Skip("mounting takes root")
	}
	defer func() { must(t, unix.Unmount(dir, 0)) }()
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	for i := range 16 {
		if err := unix.Setxattr(filepath.Join(dir, "f"), fmt.Sprintf("trusted.%d", i),
			make([]byte, 60<<10), 0); err != nil {
			t.Skip("no such attributes here: ", err)
		}
	}
	_, err := exportDir(t.Context(), openDirFD(t, dir), procFDs, io.Discard)
	var te *turnstone.Error
	if !errors.As(err, &te) || te.Kind != turnstone.KindExhausted || te.Subject != "/f" {
		t.Errorf("%v", err)
	}
}

// TestExportTooDeep checks that a path that is too long ends the export, by name, because its cost
// is the square of its depth.
func TestExportTooDeep(t *testing.T) {
	dir := t.TempDir()
	fd := openDirFD(t, dir)
	name := strings.Repeat("d", 200)
	for range longestPath/201 + 1 {
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	_, err := exportDir(t.Context(), openDirFD(t, dir), procFDs, io.Discard)
	var te *turnstone.Error
	if !errors.As(err, &te) || te.Kind != turnstone.KindExhausted || te.Hint == "" ||
		!strings.HasPrefix(te.Subject, "/ddd") || len(te.Subject) > 200 {
		t.Errorf("%v", err)
	}
}

// TestExportGivenUp checks that a reader that stops ends the export, without an open descriptor.
func TestExportGivenUp(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)),
			bytes.Repeat([]byte("x"), 200<<10), 0o644))
	}
	before := openFDs(t)
	stop := errors.New("enough")
	_, err := exportDir(t.Context(), openDirFD(t, dir), procFDs, &failAfter{n: 1 << 20, err: stop})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := exportDir(ctx, openDirFD(t, dir), procFDs, io.Discard); !errors.Is(err, stop) {
		t.Error(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); openFDs(t) > before; time.Sleep(
		time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, before %d", openFDs(t), before)
		}
	}
}

func openFDs(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

type failAfter struct {
	n   int
	err error
}

func (f *failAfter) Write(p []byte) (int, error) {
	if f.n -= len(p); f.n < 0 {
		return 0, f.err
	}
	return len(p), nil
}

func BenchmarkExportSmall(b *testing.B) {
	dir, err := os.MkdirTemp("/dev/shm", "export")
	if err != nil {
		b.Skip(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for i := range 20000 {
		sub := filepath.Join(dir, fmt.Sprint(i/100))
		if i%100 == 0 {
			if err := os.Mkdir(sub, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), bytes.Repeat([]byte("x"), 500),
			0o644); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("export", func(b *testing.B) {
		for b.Loop() {
			if _, err := exportDir(b.Context(), openDirFD(b, dir), procFDs,
				io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	var tar bytes.Buffer
	if _, err := exportDir(b.Context(), openDirFD(b, dir), procFDs, &tar); err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			u, err := upperdir.Read(b.Context(), bytes.NewReader(tar.Bytes()), dir,
				upperdir.Options{})
			if err != nil {
				b.Fatal(err)
			}
			_ = u.Close()
		}
	})
}
