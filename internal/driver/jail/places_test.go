//go:build linux && amd64

package jail

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// places reports what a prisoner can do with its places, in its working folder.
func (r *report) places(dir string, try func(string, error)) {
	at, err := os.Getwd()
	if err == nil && at != dir {
		err = errors.New("it is in " + at)
	}
	try("be in the folder", err)
	b, err := os.ReadFile("read")
	if err == nil && string(b) != "image" {
		err = errors.New("it is " + string(b))
	}
	try("read a file", err)
	write := func(name string, at int64, n int) error {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, n), at)
		return errors.Join(err, f.Close())
	}
	try("write a file that is for reading", write("read", 0, 1))
	try("change the mode of a file that is for reading", os.Chmod("read", 0o777))
	try("remove a file that is for reading", os.Remove("read"))
	try("put another in its place", os.Rename("write", "read"))
	try("write a file", write("write", 0, 1))
	try("make a file", os.WriteFile("new", nil, 0o600))
	try("make a file below", os.WriteFile("below/new", nil, 0o600))
	try("leave the folder", os.WriteFile("../new", nil, 0o600))
	try("a device in the folder", unix.Mknod("mem", unix.S_IFCHR|0o600, 1<<8|1))
	b = make([]byte, 1<<16)
	zeros, err := os.Open("zeros")
	if err == nil {
		_, err = zeros.ReadAt(b, zerosSize-int64(len(b)))
		_ = zeros.Close()
	}
	if err == nil && bytes.Trim(b, "\x00") != nil {
		err = errors.New("they are others")
	}
	try("read zeros", err)
	try("write a page of zeros", write("zeros", zerosSize-4096, 4096))
	try("write two pages of zeros", write("zeros", 0, 8192))
	l, err := net.Listen("unix", "socket")
	try("listen in the folder", err)
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = l.Close()
	}
}

const zerosSize = 1 << 36

// TestPlaces checks that files and folders under the jail's own names can be used as declared, and
// that the host's files stay unchanged except for allowed writes.
//
//testrun:user
func TestPlaces(t *testing.T) {
	needNamespaces(t)
	dir := readable(t)
	host := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.Mkdir(host("work"), 0o700), os.Mkdir(host("sub"), 0o700),
		os.WriteFile(host("image"), []byte("image"), 0o644),
		os.WriteFile(host("disk"), []byte("disk"), 0o600))
	// a root's jail has nobody's rights, and its places need no path that nobody can traverse
	if os.Geteuid() == 0 {
		for _, name := range []string{"work", "sub", "disk"} {
			err = errors.Join(err, os.Chown(host(name), Nobody, Nobody))
		}
		err = errors.Join(err, os.Chmod(dir, 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd, next, letGo := imprison(t, Jail{Show: libraries, Dir: "/machine", UnixSockets: true,
		Sealed: true, Places: []Place{
			{At: "/machine", Host: host("work"), Write: true},
			{At: "/machine/below", Host: host("sub"),
				Write: true},
			{At: "/machine/read", Host: host("image")}, {At: "/machine/write", Host: host("disk"),
				Write: true},
			{At: "/machine/zeros", Zeros: zerosSize}}})
	want := []string{"be in the folder", "read a file", "write a file", "make a file",
		"make a file below", "read zeros", "write a page of zeros",
		"listen in the folder", "a socket: unix"}
	r := next()
	if !slices.Equal(r.Worked, want) {
		t.Errorf("worked: %q, want %q; failed: %v", r.Worked, want, r.Failed)
	}
	outside(t, cmd.Process.Pid)
	letGo()
	for name, text := range map[string]string{"image": "image", "disk": "\x00isk", "work/new": "",
		"sub/new": "", "work/read": ""} {
		if b, err := os.ReadFile(host(name)); err != nil || string(b) != text {
			t.Errorf("the host's %s is %q, %v", name, b, err)
		}
	}
	// Its listening socket can be reached from outside.
	if st, err := os.Lstat(host("work/socket")); err != nil || st.Mode().Type() != os.ModeSocket {
		t.Errorf("its socket: %v", err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil ||
		strings.Contains(string(mounts), dir) {
		t.Errorf("the host sees the jail's mounts: %v\n%s", err, mounts)
	}
}

// TestNoPlace checks that invalid places are rejected before anything starts.
//
//testrun:user
func TestNoPlace(t *testing.T) {
	file := filepath.Join(readable(t), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]Place{
		{{At: "/", Host: file}}, {{At: "relative", Host: file}}, {{At: "/proc/self", Host: file}},
		{{At: "/bin/true", Host: file}},
		{{At: "/x", Host: file + "none"}}, {{At: "/x", Host: "/dev/null"}},
		{{At: "/x", Host: file}, {At: "/x", Host: file}},
		{{At: "/x", Zeros: 1}, {At: "/y/../x", Zeros: 1}},
	} {
		if _, _, err := (Jail{Places: list}).Command(Program{Path: "/bin/true"}); err == nil {
			t.Errorf("%+v is made", list)
		}
	}
}
