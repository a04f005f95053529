//go:build linux && amd64

package jail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/driver/host"
)

// The prisoner's descriptors from 3 on.
const (
	fdAnswers = 3 + iota // it writes its results
	fdGo                 // closed when it may continue
	fdImage              // a file that is open for reading
)

// A report contains a hostile program's findings in its jail.
type report struct {
	Root     []string          // names in /
	Files    []int             // open descriptors
	Failed   map[string]string // failed attempts: their errors
	Worked   []string          // successful attempts
	PID, UID int
	Hostname string
}

func TestMain(m *testing.M) {
	if host := os.Getenv("JAIL_TEST_HOST"); host != "" {
		prisoner(host)
		return
	}
	if kind := os.Getenv("JAIL_TEST_HOLDER"); kind != "" {
		holder(kind == "bare")
		return
	}
	os.Exit(m.Run())
}

// prisoner tries to escape, and reports the results: at the start, and again on request.
func prisoner(hostFile string) {
	answers := json.NewEncoder(os.NewFile(fdAnswers, "answers"))
	_ = answers.Encode(look(hostFile))
	_, _ = io.ReadAll(os.NewFile(fdGo, "go"))
	_ = answers.Encode(look(hostFile))
}

func look(hostFile string) report {
	r := report{Failed: map[string]string{}, PID: os.Getpid(), UID: os.Getuid()}
	r.Hostname, _ = os.Hostname()
	entries, _ := os.ReadDir("/")
	for _, e := range entries {
		r.Root = append(r.Root, e.Name())
	}
	for fd := range maxFiles {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil {
			r.Files = append(r.Files, fd)
		}
	}
	try := func(what string, err error) {
		if err == nil {
			r.Worked = append(r.Worked, what)
			return
		}
		r.Failed[what] = err.Error()
	}
	_, err := os.ReadFile(hostFile)
	try("read the host", err)
	if path := os.Getenv("JAIL_TEST_DEVICE"); path != "" {
		r.device(path, try)
	}
	if dir := os.Getenv("JAIL_TEST_PLACES"); dir != "" {
		r.places(dir, try)
	}
	try("write the root", os.WriteFile("/new", nil, 0o600))
	try("write libraries", os.WriteFile("/usr/lib/new", nil, 0o600))
	again, err := os.OpenFile(fmt.Sprintf("%s/%d", ownFiles, fdImage), os.O_RDWR, 0)
	_ = again.Close()
	try("open for writing what is open for reading", err)
	if entries, _ := os.ReadDir(ownFiles); len(entries) > 0 {
		r.Worked = append(r.Worked, "list descriptors")
	}
	try("find another process", unix.Kill(-1, 0))
	for name, family := range map[string]int{"internet": unix.AF_INET, "netlink": unix.AF_NETLINK,
		"vsock": unix.AF_VSOCK, "unix": unix.AF_UNIX} {
		fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
		try("a socket: "+name, err)
		_ = unix.Close(fd)
	}
	try("become root", syscall.Setuid(1))
	try("a user namespace", unix.Unshare(unix.CLONE_NEWUSER))
	_, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0,
		0, 0, 0)
	try("a process in a user namespace", toError(errno))
	try("another program", exec.Command("/proc/self/exe").Run())
	for _, n := range denied {
		_, _, errno := unix.RawSyscall6(uintptr(n), ^uintptr(0), ^uintptr(0), ^uintptr(0),
			^uintptr(0), ^uintptr(0), ^uintptr(0))
		if errno != unix.EPERM {
			r.Worked = append(r.Worked, fmt.Sprintf("system call %d: %v", n, errno))
		}
	}
	for _, n := range unknown {
		if _, _, errno := unix.RawSyscall(uintptr(n), ^uintptr(0), 0, 0); errno != unix.ENOSYS {
			r.Worked = append(r.Worked, fmt.Sprintf("system call %d: %v", n, errno))
		}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_GETPID|x32, 0, 0, 0); errno != unix.ENOSYS {
		r.Worked = append(r.Worked, fmt.Sprintf("a system call of another convention: %v", errno))
	}
	return r
}

func toError(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// readable returns a folder that everyone may read.
func readable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "turn-jail-*")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// leak opens descriptors of every kind that a started program inherits, such as those that a shell
// passes on, and returns their targets.
func leak(t *testing.T, file string) {
	t.Helper()
	var pair [2]int
	open := func(fd int, err error) {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
	fd, err := unix.Open(file, unix.O_RDWR, 0)
	open(fd, err)
	fd, err = unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	open(fd, err)
	err = unix.Pipe(pair[:])
	open(pair[0], err)
	open(pair[1], err)
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	open(fd, err)
	fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD, maxFiles-10)
	open(fd, err)
}

// imprison starts this test's program in j, and returns its process and a function that returns its
// next report. The second report comes when the program is released.
func imprison(t *testing.T, j Jail) (cmd *exec.Cmd, next func() report, letGo func()) {
	t.Helper()
	dir := readable(t)
	self, image, secret := filepath.Join(dir, "prisoner"), filepath.Join(dir, "image"),
		filepath.Join(dir, "secret")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = errors.Join(os.WriteFile(self, b, 0o755), os.WriteFile(image, []byte("image"), 0o666),
			os.Chmod(image, 0o666), os.WriteFile(secret, []byte("secret"), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	leak(t, secret)
	readOnly, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	answers, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	waits, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd, done, err := j.Command(Program{Path: self, Env: []string{"JAIL_TEST_HOST=" + secret,
		"JAIL_TEST_DEVICE=" + strings.Join(j.Devices, ""), "JAIL_TEST_PLACES=" + j.Dir},
		Files: []*os.File{theirs, waits, readOnly}})
	if err != nil {
		t.Fatal(err)
	}
	said := new(bytes.Buffer)
	cmd.Stderr = said
	// the prisoner ends with the thread that starts it, and Seal ends its own
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	err = cmd.Start()
	done()
	_, _, _ = theirs.Close(), waits.Close(), readOnly.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = answers.Close() })
	dec := json.NewDecoder(answers)
	return cmd, func() report {
		t.Helper()
		var r report
		if err := dec.Decode(&r); err != nil {
			_ = cmd.Wait()
			t.Fatalf("no report: %v; it said %q: %v", err, said,
				startFailure(strings.TrimSpace(said.String()), cmd.ProcessState.ExitCode()))
		}
		return r
	}, func() { _ = release.Close() }
}

var libraries = []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/no/such/folder"}

func needNamespaces(t *testing.T) {
	if why := host.NoUserNamespaces(); why != "" && os.Geteuid() != 0 {
		t.Skip("users may not create user namespaces here: " + why)
	}
}

// TestEscape checks that a hostile program in a jail finds an empty place and gets no rights.
//
//testrun:user
func TestEscape(t *testing.T) {
	needNamespaces(t)
	cmd, next, letGo := imprison(t, Jail{Show: libraries, Threads: 100, FileSize: 1 << 20})
	first := next()
	// Until Seal, the descriptor's name gives a right that the descriptor does not have.
	if want := []string{"open for writing what is open for reading",
		"list descriptors"}; !slices.Equal(first.Worked, want) {
		t.Errorf("before it is sealed these work: %q, want %q", first.Worked, want)
	}
	outside(t, cmd.Process.Pid)
	if err := Seal(t.Context(), cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	letGo()
	r := next()
	if len(r.Worked) > 0 {
		t.Errorf("these work: %q", r.Worked)
	}
	if r.PID != 1 || r.UID != 0 || r.Hostname != "jail" {
		t.Errorf("it is process %d of user %d on %q", r.PID, r.UID, r.Hostname)
	}
	for _, name := range r.Root {
		if !slices.Contains([]string{"lib", "lib64", "usr", "proc", "tmp"}, name) {
			t.Errorf("it sees /%s", name)
		}
	}
	if len(r.Files) < 3 {
		t.Errorf("it has the descriptors %v", r.Files)
	}
}

// outside examines a jail's process from the host.
func outside(t *testing.T, pid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"CapInh": "0000000000000000",
		"CapPrm": "0000000000000000", "CapEff": "0000000000000000",
		"CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1",
		"Seccomp": "2"} {
		if !strings.Contains(string(b), name+":\t"+want+"\n") {
			t.Errorf("%s is not %s:\n%s", name, want, b)
		}
	}
	user := os.Getuid()
	if user == 0 {
		user = Nobody
	}
	if ids := strings.Repeat("\t"+strconv.Itoa(user), 4); !strings.Contains(string(b),
		"Uid:"+ids+"\n") {
		t.Errorf("it is not user %d:\n%s", user, b)
	}
	for _, space := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		ours, err := os.Readlink("/proc/self/ns/" + space)
		theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, space))
		if err != nil || err2 != nil || ours == theirs {
			t.Errorf("namespace %s: ours %q, its %q: %v, %v", space, ours, theirs, err, err2)
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		n, _ := strconv.Atoi(fd.Name())
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if n > fdImage && !strings.HasPrefix(to, "anon_inode:") { // descriptors of its own runtime
			t.Errorf("it has descriptor %d, %s", n, to)
		}
	}
}

// TestBare checks the confinement without namespaces.
//
//testrun:user
func TestBare(t *testing.T) {
	_, next, _ := imprison(t, Jail{Bare: true})
	r := next()
	for _, what := range []string{"a user namespace", "a process in a user namespace",
		"another program", "a socket: vsock", "a socket: internet"} {
		if r.Failed[what] == "" {
			t.Errorf("%s works", what)
		}
	}
	if os.Geteuid() == 0 && r.UID != Nobody {
		t.Errorf("it is user %d", r.UID)
	}
	if slices.Max(r.Files) >= maxFiles-10 {
		t.Errorf("it has the descriptors %v", r.Files)
	}
}

// TestFails checks that a jail that cannot be created says why, and that the program does not run.
//
//testrun:user
func TestFails(t *testing.T) {
	needNamespaces(t)
	dir := readable(t)
	gone := filepath.Join(dir, "gone")
	if err := os.WriteFile(gone, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd, release, err := Jail{Show: libraries}.Command(Program{Path: gone})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stderr = &out
	err = cmd.Start()
	release()
	if err == nil {
		err = cmd.Wait()
	}
	failure := startFailure(out.String(), cmd.ProcessState.ExitCode())
	if err == nil || !errors.Is(failure, syscall.ENOENT) ||
		!strings.Contains(failure.Error(), "bind "+gone) {
		t.Errorf("%v: %v", err, failure)
	}
	for _, at := range []string{"/proc", "/sys/kernel", "relative", "/dev/null", "/proc/self"} {
		if _, _, err := (Jail{Show: []string{at}}).Command(Program{Path: "/bin/true"}); err == nil {
			t.Errorf("%s can be shown", at)
		}
	}
	if startFailure("turnstone-jail: x\nmore", 1) != nil || startFailure("other", 1) != nil {
		t.Error("what another program says is taken for a jail's failure")
	}
}

// TestNoNetwork checks that a jail has no working loopback, and cannot reach the host's abstract
// sockets, even without the filter.
//
//testrun:user
func TestNoNetwork(t *testing.T) {
	needNamespaces(t)
	cmd, next, _ := imprison(t, Jail{Show: libraries})
	next()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), ":"); n != 1 || !strings.Contains(string(b), "lo:") {
		t.Errorf("it has these cards:\n%s", b)
	}
	l, err := net.Listen("unix", "@turnstone-jail-test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", cmd.Process.Pid)); bytes.Contains(b,
		[]byte("turnstone-jail-test")) {
		t.Errorf("it sees the host's sockets:\n%s", b)
	}
}
