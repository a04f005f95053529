package hardlinks_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/hardlinks"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) int {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// mounted returns a folder with an overlay: upper, work, merged. make fills what is below.
func mounted(t *testing.T, make func(lower string)) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	dir, lower := t.TempDir(), t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"upper", "work", "merged"} {
		must(t, os.Mkdir(at(d), 0o755))
	}
	make(lower)
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, "index=on,redirect_dir=on,lowerdir="+
		lower+",upperdir="+at("upper")+",workdir="+at("work")); err != nil {
		t.Skipf("no overlay here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at("merged"), unix.MNT_DETACH) })
	if _, err := os.Stat(at("work/index")); err != nil {
		t.Skip("this kernel's overlays have no index")
	}
	return dir
}

func inode(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0
	}
	return st.Ino
}

// Files of each type that were changed by one name have all of their visible names in the upper
// directory afterwards, with their modes and times, and others are not copied.
func TestComplete(t *testing.T) {
	kinds := []string{"file", "setuid", "link", "fifo", "device"}
	dir := mounted(t, func(lower string) {
		at := func(name string) string { return filepath.Join(lower, name) }
		must(t, os.MkdirAll(at("deep/er"), 0o755))
		must(t, os.WriteFile(at("file"), []byte("x"), 0o644))
		must(t, os.WriteFile(at("setuid"), []byte("x"), 0o755))
		must(t, os.Chmod(at("setuid"), 0o755|os.ModeSetuid))
		must(t, os.Symlink("target", at("link")))
		must(t, unix.Mkfifo(at("fifo"), 0o600))
		must(t, unix.Mknod(at("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		must(t, os.WriteFile(at("other"), []byte("y"), 0o644))
		for _, kind := range append(kinds, "other") {
			for _, name := range []string{"deep/er/" + kind, "deep/" + kind + "2", kind + "3"} {
				must(t, unix.Linkat(unix.AT_FDCWD, at(kind), unix.AT_FDCWD, at(name), 0))
			}
			past := []unix.Timespec{{Sec: 7}, {Sec: 1000, Nsec: 5}}
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at(kind), past, unix.AT_SYMLINK_NOFOLLOW))
		}
	})
	merged := func(name string) string { return filepath.Join(dir, "merged", name) }
	upper := func(name string) string { return filepath.Join(dir, "upper", name) }
	for _, kind := range kinds {
		must(t, unix.Lsetxattr(merged(kind), "trusted.x", nil, 0)) // copies it up
		must(t, os.Remove(merged(kind)))
		must(t, os.Remove(merged(kind+"3")))
	}
	must(t, os.Rename(merged("deep"), merged("renamed")))
	var c hardlinks.Completer
	must(t, c.Complete(t.Context(), open(t, merged("")), open(t, filepath.Join(dir, "work/index"))))
	for _, kind := range kinds {
		one, two := upper("renamed/er/"+kind), upper("renamed/"+kind+"2")
		if a, b := inode(one), inode(two); a == 0 || a != b {
			t.Errorf("%s: inodes %d and %d", kind, a, b)
			continue
		}
		var st unix.Stat_t
		must(t, unix.Lstat(one, &st))
		if st.Mtim != (unix.Timespec{Sec: 1000, Nsec: 5}) {
			t.Errorf("%s: modified %v", kind, st.Mtim)
		}
		if kind == "setuid" && st.Mode&unix.S_ISUID == 0 {
			t.Errorf("%s: mode %o", kind, st.Mode)
		}
		if inode(upper(kind+"3")) != 0 && kind != "device" { // a whiteout is a device
			var gone unix.Stat_t
			must(t, unix.Lstat(upper(kind+"3"), &gone))
			if gone.Mode&unix.S_IFMT != unix.S_IFCHR {
				t.Errorf("%s: a removed name is back", kind)
			}
		}
	}
	if _, err := os.Lstat(upper("renamed/er/other")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that nothing changed: %v", err)
	}
	// What is complete is not looked for again.
	before := inode(upper("renamed/file2"))
	must(t, os.Remove(upper("renamed/file2")))
	must(t, c.Complete(t.Context(), open(t, merged("")), open(t, filepath.Join(dir, "work/index"))))
	if inode(upper("renamed/file2")) == before {
		t.Error("it was completed twice")
	}
}
