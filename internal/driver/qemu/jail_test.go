package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/jail"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate/substratetest"
)

// intended matches the expected open files of a machine's QEMU: its sockets, its files, and its
// own.
var intended = regexp.MustCompile(
	`^(/dev/null|/dev/kvm|/kvm|(socket|pipe):\[\d+\]|anon_inode:.*|/memfd:turnstone-stub ` +
		`.*|.*/(ram|scratch|#\d+|root\.[a-z0-9]+|layer-[^/]*)( \(deleted\))?)$`)

// TestJail checks that QEMU has its own namespaces, an empty root, no rights and only the machine's
// descriptors, and that it cannot reopen them.
//
//testrun:user
func TestJail(t *testing.T) {
	h := turntest.Home(t)
	m := turntest.Machine(t, h, "base")
	s := newSubstrate(t, h, &m)
	if why := host.NoUserNamespaces(); why != "" && os.Geteuid() != 0 {
		t.Skip("users may not create user namespaces here: " + why)
	}
	if j := s.Jail(); !j.Namespaces() || strings.Contains(s.Isolation(), "no namespaces") {
		t.Fatalf("QEMU has no namespaces: %+v", j)
	}
	foreign := leak(t)
	vm, _ := substratetest.Clone(t, s, m, &guestNetwork)
	pid := vm.(*machine).PID()
	for _, space := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		ours, err := os.Readlink("/proc/self/ns/" + space)
		theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, space))
		if err != nil || err2 != nil || ours == theirs {
			t.Errorf("namespace %s: ours %q, its %q: %v, %v", space, ours, theirs, err, err2)
		}
	}
	for name, want := range map[string]string{"CapPrm": "0000000000000000",
		"CapEff": "0000000000000000", "CapBnd": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2"} {
		if got := statusOf(t, pid, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	root, top := fmt.Sprintf("/proc/%d/root", pid), []string{"etc", "lib", "lib64", "proc", "usr"}
	if s.Accelerated() {
		top = append(top, "dev")
		checkDevice(t, pid)
	}
	for at, want := range map[string][]string{"": top, "/etc": {"ld.so.cache"}, "/proc": {"self"},
		"/proc/self/fd": nil, "/usr": {"bin", "lib", "lib64", "local", "share"},
		"/usr/bin": {filepath.Base(s.binary)}} {
		entries, err := os.ReadDir(root + at)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if !slices.Contains(want, e.Name()) {
				t.Errorf("it sees %s/%s", at, e.Name())
			}
		}
	}
	if err := os.WriteFile(root+"/new", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("its root can be written: %v", err)
	}
	checkDescriptors(t, pid, foreign)
}

// checkDevice checks that a QEMU that uses KVM has that device, which no other user may open or
// change, and no other device.
func checkDevice(t *testing.T, pid int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/root/dev", pid)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "kvm" {
		t.Errorf("it sees the devices %v, %v", entries, err)
	}
	var st, host unix.Stat_t
	if err := errors.Join(unix.Stat(dir+"/kvm", &st), unix.Stat(kvmDevice, &host)); err != nil ||
		st.Rdev != host.Rdev {
		t.Fatalf("%+v, the host's %+v: %v", st, host, err)
	}
	if os.Geteuid() == 0 && (st.Uid != jail.Nobody || st.Mode&0o777 != 0o600 ||
		st.Dev == host.Dev) {
		t.Errorf("its device has mode %o and is user %d's, on device %d; the host's is on %d",
			st.Mode, st.Uid, st.Dev, host.Dev)
	}
	if err := os.Chmod(dir+"/kvm", 0o666); os.Geteuid() == 0 && !errors.Is(err, unix.EROFS) {
		t.Errorf("its device can be changed: %v", err)
	}
}

// statusOf returns a field of /proc/PID/status.
func statusOf(t *testing.T, pid int, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), name+":\t")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

type fileID struct{ dev, ino uint64 }

// leak opens descriptors that a started program inherits, such as those that a shell passes on, and
// returns their targets.
func leak(t *testing.T) (opened map[fileID]bool) {
	t.Helper()
	opened = map[fileID]bool{}
	keep := func(fd int, err error) {
		t.Helper()
		var st unix.Stat_t
		if err = errors.Join(err, unix.Fstat(fd, &st)); err != nil {
			t.Fatal(err)
		}
		opened[fileID{st.Dev, st.Ino}] = true
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
	keep(unix.Open("/etc/passwd", unix.O_RDONLY, 0))
	keep(unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0))
	keep(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	var pair [2]int
	err := unix.Pipe(pair[:])
	keep(pair[0], err)
	keep(pair[1], err)
	keep(unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD, 500))
	return opened
}

// checkDescriptors checks a process's open files.
func checkDescriptors(t *testing.T, pid int, foreign map[fileID]bool) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	fds, err := os.ReadDir(dir)
	if err != nil || len(fds) < 5 {
		t.Fatalf("descriptors of %d: %v, %v", pid, fds, err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(dir + fd.Name())
		var st unix.Stat_t
		if err := unix.Stat(dir+fd.Name(), &st); err != nil {
			t.Error(err)
		}
		if foreign[fileID{st.Dev, st.Ino}] || !intended.MatchString(to) {
			t.Errorf("QEMU has descriptor %s: %s", fd.Name(), to)
		}
	}
}

// TestNoJail checks that without namespaces QEMU runs behind the best available wall, and reports
// that.
//
//testrun:user
func TestNoJail(t *testing.T) {
	h := turntest.Home(t)
	m := turntest.Machine(t, h, "base")
	s := newSubstrate(t, h, &m)
	foreign := leak(t)
	for _, w := range []host.Wall{filtered, open} {
		s.wall = Jail{Wall: w, Reason: "of a test"}
		if !strings.HasSuffix(s.Isolation(), ", no namespaces") {
			t.Errorf("%s: isolation %q", w, s.Isolation())
		}
		vm, client := substratetest.Clone(t, s, m, &guestNetwork)
		if out, _ := substratetest.Shell(t, client, "echo fine"); out != "fine\n" {
			t.Errorf("%s: the machine says %q", w, out)
		}
		pid := vm.(*machine).PID()
		if os.Geteuid() == 0 {
			if want := strings.Repeat(strconv.Itoa(jail.Nobody)+"\t", 4); statusOf(t, pid, "Uid")+
				"\t" != want {
				t.Errorf("%s: its user is %q", w, statusOf(t, pid, "Uid"))
			}
		}
		if statusOf(t, pid, "NoNewPrivs") != "1" || statusOf(t, pid, "Seccomp") != "2" {
			t.Errorf("%s: no filter", w)
		}
		checkDescriptors(t, pid, foreign)
		_ = vm.Close()
	}
}

// TestWallRemembered checks that a result is remembered until its dependencies change, and a bad
// result for a minute.
func TestWallRemembered(t *testing.T) {
	h := &statedir.Dir{Root: t.TempDir()}
	if _, err := h.MkdirAll("cache"); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\necho QEMU 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), h, Options{Binary: bin}) // it needs a shell, which no jail has
	if err != nil {
		t.Fatal(err)
	}
	first := s.Jail()
	if first.Namespaces() || first.Reason == "" {
		t.Fatalf("%+v", first)
	}
	if again, err := s.findWall(t.Context()); err != nil || !again.When.Equal(first.When) {
		t.Errorf("asked again at once: %+v, %v", again, err)
	}
	path := h.Path("cache", "qemu-jail.json")
	for what, change := range map[string]func(*Jail){
		"an old answer": func(j *Jail) { j.When = j.When.Add(-2 * host.NoLasts) },
		"another host":  func(j *Jail) { j.Host += "x" },
	} {
		j := s.Jail()
		change(&j)
		b, _ := json.Marshal(j)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if again, err := s.findWall(t.Context()); err != nil || again.When.Equal(j.When) ||
			again.Host != first.Host {
			t.Errorf("%s: %+v, %v", what, again, err)
		}
	}
}
