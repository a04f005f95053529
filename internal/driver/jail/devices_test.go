//go:build linux && amd64

package jail

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// device reports what a prisoner can do with a device, and with its folder.
func (r *report) device(path string, try func(string, error)) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	try("open the device", err)
	b := []byte{1}
	if err == nil {
		_, err = f.Read(b)
		_ = f.Close()
	}
	try("use the device", err)
	try("change the device's mode", os.Chmod(path, 0o666))
	try("change the device's owner", os.Chown(path, 0, 0))
	try("remove the device", os.Remove(path))
	try("make a device", unix.Mknod(filepath.Join(filepath.Dir(path), "mem"), unix.S_IFCHR|0o600,
		1<<8|1))
	entries, _ := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			r.Worked = append(r.Worked, "see the device "+e.Name())
		}
	}
}

// TestDevice checks that a root's jail can open a device of root's that has others beside it, can
// do nothing else with it, and does not change the host's node.
//
//testrun:user
func TestDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root's jails have device nodes of their own")
	}
	dir := readable(t)
	zero := filepath.Join(dir, "zero")
	for path, number := range map[string]int{zero: 5, filepath.Join(dir, "null"): 3} {
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, 1<<8|number); err != nil {
			t.Skip(err)
		}
	}
	if err := OwnsDevices(zero); err != nil {
		t.Skip(err)
	}
	var before, after unix.Stat_t
	if err := unix.Stat(zero, &before); err != nil {
		t.Fatal(err)
	}
	_, next, _ := imprison(t, Jail{Show: libraries, Devices: []string{zero}})
	r := next()
	// the last two until Seal
	want := []string{"open the device", "use the device",
		"open for writing what is open for reading", "list descriptors"}
	if !slices.Equal(r.Worked, want) {
		t.Errorf("worked: %q, want %q; failed: %v", r.Worked, want, r.Failed)
	}
	if err := unix.Stat(zero, &after); err != nil || after.Mode != before.Mode ||
		after.Uid != before.Uid || after.Rdev != before.Rdev {
		t.Errorf("the host's device was %+v, is %+v: %v", before, after, err)
	}
	if slices.Contains(r.Files, fdImage+1) || slices.Contains(r.Files, fdImage+2) {
		t.Errorf("it has the descriptors %v", r.Files)
	}
}

// TestNoDevice checks that files that are not devices, and devices of two folders, are rejected.
//
//testrun:user
func TestNoDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make device nodes")
	}
	for _, paths := range [][]string{{"/etc/passwd"}, {"/dev/none"},
		{"/dev/null", "/proc/self/fd/0"}} {
		if err := OwnsDevices(paths...); err == nil {
			t.Errorf("%q are given", paths)
		}
	}
}
