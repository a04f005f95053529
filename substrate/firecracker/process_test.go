package firecracker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/substrate"
)

// A held is what a process that holds a machine is told.
type held struct {
	Home, Binary, Jailer string
	Jailed               bool
	Machine              substrate.Machine
}

// hold starts the machine that dir/held.json describes, says its process's id, and
// stays until it is killed.
func hold(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "held.json"))
	if err != nil {
		return err
	}
	var h held
	if err := json.Unmarshal(b, &h); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := open(ctx, &home.Home{Dir: h.Home}, Options{Binary: h.Binary, Jailer: h.Jailer})
	if err != nil {
		return err
	}
	if !h.Jailed {
		s.jailer = ""
	}
	vm, err := s.Restore(ctx, h.Machine)
	if err != nil {
		return err
	}
	fmt.Println(vm.(*machine).process.Pid)
	<-vm.Done()
	return errors.New("the machine ended first")
}

// killed starts a machine in another process and kills that as nobody can prepare for.
func (b *bench) killed(t *testing.T) {
	t.Helper()
	jailer := b.s.jailer
	if jailer == "" {
		jailer = b.script(t, "none", sayJailer)
	}
	m := b.m
	m.Agent = nil
	text, err := json.Marshal(struct {
		Home, Binary, Jailer string
		Jailed               bool
		Machine              map[string]any
	}{b.s.home.Dir, b.s.binary, jailer, b.s.jailer != "", map[string]any{"Kernel": m.Kernel, "KernelDigest": m.KernelDigest, "Initramfs": m.Initramfs,
		"InitDigest": m.InitDigest, "Root": m.Root, "RootDigest": m.RootDigest, "Shape": m.Shape, "Layers": m.Layers, "Home": m.Home}})
	check(t, err)
	check(t, os.WriteFile(filepath.Join(b.dir, "held.json"), text, 0o600))
	self, err := os.Executable()
	check(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "TURNSTONE_TEST_HOLD="+b.dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
		t.Fatalf("the holder says %q, %v: %s", line, err, stderr.String())
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	check(t, err)
	if unix.Kill(pid, 0) != nil {
		t.Fatal("its machine does not run")
	}
	check(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for until := time.Now().Add(10 * time.Second); !gone(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the machine has outlived its holder")
		}
	}
}

// gone says whether a process is no more, or waits to be buried.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// A machine does not outlive the process that holds it, and the next one cleans up.
func TestKilledHolder(t *testing.T) {
	b := newBench(t, "")
	b.killed(t)
	cells, err := os.ReadDir(b.s.home.Path(cellsDir))
	check(t, err)
	if len(cells) == 0 {
		t.Fatal("there is nothing to sweep")
	}
	for _, c := range cells {
		if _, err := os.Stat(b.s.home.Path(cellsDir, c.Name(), scratchName)); err == nil {
			t.Error("its scratch disk has a name, and takes up room")
		}
	}
	vm, err := b.s.Restore(within(t), b.m) // a machine that runs is not swept
	check(t, err)
	sweepCells(b.s.home)
	speak(t, vm)
	b.nothingLeft(t)
}

// jailed gives the bench a jailer. Making a jail takes root.
func (b *bench) jailed(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a jail is made by root")
	}
	host := owners(t)
	t.Cleanup(func() {
		if now := owners(t); now != host {
			t.Errorf("the host's own folders were changed from %s to %s", host, now)
		}
	})
	program := standin(t)
	jailer := filepath.Join(b.dir, "jailer-standin")
	check(t, os.Symlink(program, jailer))
	b.s.binary = program
	b.s.jailer = b.script(t, "jailer", fmt.Sprintf("STANDIN='' STANDIN_LOG=/out/log exec '%s' \"$@\"", jailer))
	if err := exec.Command("unshare", "-m", "true").Run(); err != nil {
		t.Skipf("no mount namespace can be made: %v", err)
	}
}

// owners says whose the host's folders are that a jail has too.
func owners(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range []string{"/", "/dev", "/run"} {
		var st unix.Stat_t
		check(t, unix.Stat(path, &st))
		fmt.Fprintf(&all, "%s %d:%d %o; ", path, st.Uid, st.Gid, st.Mode)
	}
	return all.String()
}

func TestJail(t *testing.T) {
	b := newBench(t, "")
	b.jailed(t)
	m := b.m
	m.Layers = []string{b.slot(t, "one", 0o600), b.slot(t, "two", 0o444)}
	layer, err := os.Stat(m.Layers[0])
	check(t, err)
	vm, err := b.s.Restore(within(t), m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	if bytes.Contains(mounts, []byte(b.dir)) {
		t.Errorf("the host sees the jail's mounts:\n%s", mounts)
	}
	b.checkDrives(t, notes(t, vm.(*machine).cell.out("log")), m, true)
	b.checkJailed(t, vm.(*machine))
	if now, err := os.Stat(m.Layers[0]); err != nil || !os.SameFile(layer, now) || now.Mode() != layer.Mode() || !now.ModTime().Equal(layer.ModTime()) {
		t.Errorf("the layer's image was touched: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "vm")
	check(t, vm.(substrate.Snapshotter).Snapshot(within(t), dir))
	clone, err := b.s.RestoreFrom(within(t), b.m, dir)
	check(t, err)
	speak(t, clone)
	speak(t, vm)
	if !strings.Contains(b.s.Isolation(), "jailed") {
		t.Error(b.s.Isolation())
	}
	b.nothingLeft(t)
}

// checkJailed looks at the processes of a machine: the shell, and Firecracker below it.
func (b *bench) checkJailed(t *testing.T, m *machine) {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.process.Pid, m.process.Pid))
	check(t, err)
	pids := strings.Fields(string(children))
	if len(pids) != 1 {
		t.Fatalf("children %q", children)
	}
	status, err := os.ReadFile("/proc/" + pids[0] + "/status")
	check(t, err)
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "Groups:\t \n", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("its status has not got %q:\n%s", want, status)
		}
	}
	seen, err := os.ReadDir("/proc/" + pids[0] + "/root")
	check(t, err)
	var names []string
	for _, e := range seen {
		names = append(names, e.Name())
	}
	for _, secret := range []string{"etc", "proc", "work", "tmp"} {
		if _, err := os.Stat("/proc/" + pids[0] + "/root/" + secret); err == nil {
			t.Errorf("it sees /%s: %v", secret, names)
		}
	}
	for _, ns := range []string{"mnt", "pid", "ipc"} {
		ours, err1 := os.Readlink("/proc/self/ns/" + ns)
		theirs, err2 := os.Readlink("/proc/" + pids[0] + "/ns/" + ns)
		if err := errors.Join(err1, err2); err != nil || ours == theirs {
			t.Errorf("namespace %s: %s and %s, %v", ns, ours, theirs, err)
		}
	}
}

// Not even when it is the main thread that is asked first.
func TestOnThread(t *testing.T) {
	var wg sync.WaitGroup
	for range 50 {
		ids := make(chan [2]int)
		wg.Add(1)
		go func() {
			defer wg.Done()
			onThread(func() { ids <- [2]int{unix.Gettid(), unix.Getpid()} })
		}()
		if id := <-ids; id[0] == id[1] {
			t.Error("it runs on the main thread")
		}
	}
	wg.Wait()
}

func TestJailedHome(t *testing.T) {
	b := newBench(t, "")
	b.jailed(t)
	m := b.m
	m.Home = b.slot(t, "homedisk", 0o600)
	for range 2 {
		vm, err := b.s.Restore(within(t), m)
		check(t, err)
		b.checkDrives(t, notes(t, vm.(*machine).cell.out("log")), m, true)
		check(t, vm.Close())
	}
	b.nothingLeft(t)
}

func TestJailedKilledHolder(t *testing.T) {
	b := newBench(t, "")
	b.jailed(t)
	b.killed(t)
	sweepCells(b.s.home)
	b.nothingLeft(t)
}

func TestJailFails(t *testing.T) {
	b := newBench(t, "")
	b.jailed(t)
	good := b.s.jailer
	for name, tc := range map[string]struct {
		script, text string
		kind         turnstone.Kind
	}{
		"refuses": {"echo 'Error: it is late' >&2; exit 1", "it is late", turnstone.Dead},
		"mute":    {"exit 3", "exit status 3", turnstone.Dead},
	} {
		b.s.jailer = b.script(t, name, tc.script)
		if _, err := b.s.Boot(within(t), b.m); turnstone.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %s, %v", name, turnstone.KindOf(err), err)
		}
	}
	b.s.jailer = good
	m := b.m
	m.Initramfs = "/none"
	if _, err := b.s.Boot(within(t), m); turnstone.KindOf(err) != turnstone.Unavailable || !strings.Contains(err.Error(), "initrd") {
		t.Errorf("got %v", err)
	}
	b.nothingLeft(t)
}

func TestCgroupLimits(t *testing.T) {
	dir := t.TempDir()
	expect := func(what, args, parent string) {
		t.Helper()
		if got, group := cgroupLimits(2, dir); strings.Join(got, " ") != args || group != parent {
			t.Errorf("%s: %q in %q", what, got, group)
		}
	}
	expect("without control groups", "", "")
	check(t, os.Mkdir(filepath.Join(dir, "pids"), 0o755))
	expect("without version 1's processes", "", "")
	check(t, os.WriteFile(filepath.Join(dir, "pids", "cgroup.procs"), nil, 0o644))
	expect("version 1", "--cgroup-version 1 --parent-cgroup turnstone --cgroup pids.max=18", filepath.Join(dir, "pids", "turnstone"))
	path := filepath.Join(dir, "cgroup.controllers")
	check(t, os.WriteFile(path, []byte("cpu memory\n"), 0o644))
	expect("version 2 without processes", "", "")
	check(t, os.WriteFile(path, []byte("cpu memory pids\n"), 0o644))
	expect("version 2", "--cgroup-version 2 --parent-cgroup turnstone --cgroup pids.max=18", filepath.Join(dir, "turnstone"))
}

// TestCopyPages: a copy is equal up to its limit, and has no page of zeros.
func TestCopyPages(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const page = 4096
		n := rapid.IntRange(0, 600).Draw(rt, "pages")
		want := make([]byte, n*page+rapid.IntRange(0, page-1).Draw(rt, "rest"))
		for i := range want[:len(want)/page*page] {
			if i%page == 0 && rapid.IntRange(0, 3).Draw(rt, "data") == 0 {
				want[i+rapid.IntRange(0, page-1).Draw(rt, "at")] = 1
			}
		}
		f, err := os.CreateTemp(t.TempDir(), "")
		check(t, err)
		defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
		_, err = f.Write(want)
		check(t, err)
		limit := rapid.Int64Range(0, int64(len(want))+page).Draw(rt, "limit")
		to, err := os.CreateTemp(t.TempDir(), "")
		check(t, err)
		defer func() { _, _ = to.Close(), os.Remove(to.Name()) }()
		check(t, copyPages(t.Context(), to, f, limit))
		got, err := os.ReadFile(to.Name())
		check(t, err)
		want = want[:min(limit, int64(len(want)))]
		if !bytes.Equal(got, want) {
			rt.Fatal("the file is another")
		}
		full := int64(0)
		for i := 0; i < len(want); i += page {
			if bytes.Count(want[i:min(i+page, len(want))], []byte{0}) < min(page, len(want)-i) {
				full += page
			}
		}
		if onDisk(t, to.Name()) > full+8*page { // what the file system needs to find them
			rt.Fatalf("the copy takes %d bytes, of which %d are not zeros", onDisk(t, to.Name()), full)
		}
	})
}

func TestChannel(t *testing.T) {
	c := new(channel)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading nothing: %v", err)
	}
	a1, b1 := net.Pipe()
	c.swap(a1)
	go func() { _, _ = b1.Write([]byte("1")) }()
	buf := make([]byte, 1)
	if _, err := io.ReadFull(c, buf); err != nil || buf[0] != '1' {
		t.Errorf("%q, %v", buf, err)
	}
	a2, b2 := net.Pipe()
	c.swap(a2)
	if _, err := b1.Write([]byte("x")); err == nil {
		t.Error("the connection before is open")
	}
	check(t, c.SetDeadline(time.Unix(1, 0)))
	if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	check(t, c.SetDeadline(time.Time{}))
	go func() { _, _ = io.ReadFull(b2, buf) }()
	if _, err := c.Write([]byte("2")); err != nil {
		t.Error(err)
	}
	check(t, c.Close())
	check(t, c.Close())
	a3, b3 := net.Pipe()
	c.swap(a3) // too late
	if _, err := b3.Write([]byte("x")); err == nil {
		t.Error("a closed channel has taken a connection")
	}
}

func TestExplain(t *testing.T) {
	m := newMachine(turnstone.NewSandboxID(), &cell{})
	_, _ = m.console.Write([]byte("2026-01-01T00:00:00.0 [sb-1:main:WARN] never mind\n2026-01-01T00:00:00.0 [sb-1:main:ERROR] Kvm error: no \x1b access\n" +
		"2026-01-01T00:00:00.0 [sb-1:main:ERROR] Firecracker exiting with error. exit_code=1\n"))
	_, _ = m.stderr.Write([]byte("Error: RunWithApi(MicroVMStoppedWithError(GenericError))\n"))
	err := exec.Command("/bin/sh", "-c", "exit 1").Run()
	if got := m.explain(err).Error(); !strings.Contains(got, "Kvm error: no ? access") {
		t.Errorf("got %q", got)
	}
	killed := exec.Command("/bin/sh", "-c", "kill -BUS $$").Run()
	if got := m.explain(killed).Error(); !strings.Contains(got, "SIGBUS") {
		t.Errorf("got %q", got)
	}
	var exit *exec.ExitError
	if !errors.As(killed, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGBUS {
		t.Error(killed)
	}
}

// A cell that cannot be made leaves nothing, and what is made already is not taken.
func TestNewCell(t *testing.T) {
	h := &home.Home{Dir: t.TempDir()}
	id := turnstone.NewSandboxID()
	c, err := newCell(t.Context(), h, id)
	check(t, err)
	sweepCells(h)
	if _, err := os.Stat(c.dir); err != nil {
		t.Error("a cell that is held was swept")
	}
	c.remove()
	if left, _ := os.ReadDir(h.Path(cellsDir)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	check(t, os.WriteFile(h.Path(cellsDir, string(id)), nil, 0o600))
	if _, err := newCell(t.Context(), h, id); err == nil {
		t.Error("a cell in the place of a file")
	}
	check(t, os.WriteFile(h.Path(cellsDir, "stray.lock"), nil, 0o600))
	sweepCells(h)
	if left, _ := os.ReadDir(h.Path(cellsDir)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
