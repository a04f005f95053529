package layer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/guest/hardlinks"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/hostdir"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// scratch creates a sandbox's scratch disk and mounts it; it skips the test where that is not
// possible.
func scratch(t testing.TB) (image, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	image, dir = filepath.Join(t.TempDir(), "disk.ext4"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 1<<30))
	mke2fs := exec.Command("/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0",
		"-b", "4096", "-i", "8192",
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

// For a real overlay with random changes, Apply returns the tree that is visible through the
// overlay.
func TestApplyIsWhatLinuxShows(t *testing.T) {
	image, disk := scratch(t)
	for round := range 150 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			oneRound(t, image, disk, uint64(round))
		})
	}
}

func oneRound(t *testing.T, image, disk string, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 4))
	dir := filepath.Join(disk, fmt.Sprint(seed))
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"", "lower", "upper", "work", "merged"} {
		must(t, os.Mkdir(at(d), 0o755))
	}
	for range 60 {
		act(t, r, at("lower"))
	}
	opts := fmt.Sprintf(
		"lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=on,metacopy=off,index=on,xino=off",
		at("lower"), at("upper"), at("work"))
	if err := unix.Mount("overlay", at("merged"), "overlay", unix.MS_NODEV, opts); err != nil {
		t.Skipf("no overlay here: %v", err)
	}
	defer func() { _ = unix.Unmount(at("merged"), unix.MNT_DETACH) }()
	for range r.IntN(100) {
		act(t, r, at("merged"))
	}
	var st unix.Stat_t // Apply has a special rule for the time of the top directory
	must(t, unix.Lstat(at("lower"), &st))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at("merged"), []unix.Timespec{st.Mtim, st.Mtim}, 0))

	complete(t, at("merged"), at("work/index"))
	w := treetest.NewStore()
	shown, err := hostdir.Open(at("merged"))
	must(t, err)
	want, err := tree.Build(t.Context(), w, shown, tree.BuildOptions{})
	must(t, errors.Join(err, shown.Close()))
	thaw := freeze(t, disk)
	defer thaw()
	f, err := os.Open(image)
	must(t, err)
	defer func() { _ = f.Close() }()
	fs, err := ext4.Open(f, 1<<30)
	must(t, err)
	lower, err := fs.Lookup(fmt.Sprintf("%d/lower", seed))
	must(t, err)
	parent, err := tree.Build(t.Context(), w, lower, tree.BuildOptions{})
	must(t, err)
	upper, err := fs.Lookup(fmt.Sprintf("%d/upper", seed))
	must(t, err)
	got, stats, err := layer.Apply(t.Context(), w, parent, upper, layer.Options{})
	must(t, err)
	if got != want {
		t.Errorf("%+v\ngot\n%s\nwant\n%s\nparent\n%s", stats, dump(t, w, got),
			dump(t, w, want), dump(t, w, parent))
	}
}

// complete does what an agent does before its disk is read.
func complete(t testing.TB, merged, index string) {
	var fds []int
	for _, dir := range []string{merged, index} {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	must(t, new(hardlinks.Completer).Complete(t.Context(), fds[0], fds[1]))
}

func freeze(t testing.TB, dir string) (thaw func()) {
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878 // linux/fs.h
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.IoctlSetInt(fd, fiFreeze, 0))
	return func() {
		must(t, unix.IoctlSetInt(fd, fiThaw, 0))
		must(t, unix.Close(fd))
	}
}

// act makes a random change below root, if possible.
func act(t *testing.T, r *rand.Rand, root string) {
	pick := func(names ...string) string { return names[r.IntN(len(names))] }
	name := func() string { return pick("a", "b", "c", "d", "a-b", "\xff") }
	place := func() string {
		p := root
		for range r.IntN(3) {
			if next := filepath.Join(p, name()); isDir(next) {
				p = next
			}
		}
		return filepath.Join(p, name())
	}
	p, q := place(), place()
	data := strings.Repeat(pick("x", "yy", ""), 1+r.IntN(5000))
	switch r.IntN(20) {
	case 0, 1, 2:
		// not into FIFOs and devices
		if st, err := os.Lstat(p); err != nil || st.Mode().IsRegular() {
			_ = os.WriteFile(p, []byte(data), 0o640)
		}
	case 3, 4, 5:
		_ = os.Mkdir(p, 0o750)
	case 6:
		_ = os.RemoveAll(p)
	case 7:
		if os.RemoveAll(p) == nil { // the directory hides the earlier directory
			_ = os.Mkdir(p, 0o755)
			_ = os.WriteFile(filepath.Join(p, name()), []byte(data), 0o644)
		}
	case 8:
		_ = os.Symlink(data[:min(len(data), 90)]+"t", p)
	case 9:
		if err := os.Rename(p, q); err != nil && !errors.Is(err, os.ErrNotExist) &&
			!errors.Is(err, os.ErrExist) && !errors.As(err, new(*os.LinkError)) {
			t.Fatal(err)
		}
	case 10, 11:
		_ = os.Link(p, q)
	case 12:
		_ = os.Chmod(p, os.FileMode(0o600|r.IntN(64)))
		_ = os.Lchown(p, r.IntN(2), 70000)
	case 13:
		_ = unix.Lsetxattr(p, pick("user.a", "user.b", "trusted.c"),
			[]byte(data[:min(len(data), 50)]), 0)
	case 14:
		_ = unix.Mknod(p, pick2(r, unix.S_IFIFO, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFSOCK)|0o600,
			int(unix.Mkdev(uint32(1+r.IntN(300)), 3)))
	case 15:
		// Copied up, unchanged.
		if fd, err := unix.Open(p, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
			_ = unix.Close(fd)
		}
	case 16, 17, 18:
		if isDir(p) && !exists(q) { // a directory with what is in it
			_ = os.Rename(p, q)
		}
	case 19: // another name of a file, in another directory
		if first := fileBelow(r, root); first != "" {
			_ = os.Link(first, q)
		}
	}
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

// fileBelow returns a random file below root, or "".
func fileBelow(r *rand.Rand, root string) (found string) {
	seen := 0
	_ = filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if seen++; r.IntN(seen) == 0 {
				found = p
			}
		}
		return nil
	})
	return found
}

func pick2(r *rand.Rand, of ...uint32) uint32 { return of[r.IntN(len(of))] }

func isDir(p string) bool {
	st, err := os.Lstat(p)
	return err == nil && st.IsDir()
}
