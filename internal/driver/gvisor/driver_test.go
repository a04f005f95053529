package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
)

func TestMain(m *testing.M) {
	substratetest.Child(hold, benchmark)
	os.Exit(m.Run())
}

// endSandbox kills a sandbox's process, as the host's kernel does when memory runs out.
func endSandbox(vm substrate.Sandbox) error {
	pid, err := processID(vm.(*sandbox).dir)
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGKILL)
}

func processID(dir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// TestDamagedSnapshot damages a snapshot in every way and checks that it is taken again, never
// used.
func TestDamagedSnapshot(t *testing.T) {
	m := testMachine(t, turntest.Home(t))
	h := &statedir.Dir{Root: t.TempDir()}
	s := newSubstrate(t, h)
	id, err := s.identity(m)
	check(t, err)
	dir := h.Path("snapshots", id.key())
	run := func() {
		t.Helper()
		vm, client := substratetest.Clone(t, s, m, nil)
		if out, _ := substratetest.Shell(t, client, "echo fine"); out != "fine\n" {
			t.Errorf("the restored sandbox says %q", out)
		}
		_ = vm.Close()
	}
	run()
	edit := func(name string, change func([]byte) []byte) func() error {
		return func() error {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, change(b), 0o600)
		}
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	flipQuietly := func(name string) func() error {
		return func() error {
			path := filepath.Join(dir, name)
			st, err := os.Stat(path)
			return errors.Join(err, edit(name, flip)(), os.Chtimes(path, st.ModTime(),
				st.ModTime()))
		}
	}
	damages := map[string]func() error{
		"garbage manifest": edit(manifestFile, func([]byte) []byte { return []byte("{{{") }),
		"another runsc": edit(manifestFile, func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(id.Runsc), []byte(turnstone.DigestBytes(nil)))
		}),
		"another kernel": edit(manifestFile,
			func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(id.Kernel), []byte("1.0")) }),
		"another CPU": edit(manifestFile, func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(id.HostCPU), []byte(turnstone.DigestBytes(nil)))
		}),
		"no stamps": edit(manifestFile,
			func(b []byte) []byte {
				return bytes.ReplaceAll(b, []byte(`"files"`),
					[]byte(`"filez"`))
			}),
	}
	for _, name := range checkpointFiles {
		path := filepath.Join(dir, name)
		damages["a flipped bit, times restored: "+name] = flipQuietly(name)
		damages["cut: "+name] = edit(name, func(b []byte) []byte { return b[:len(b)/2] })
		damages["missing: "+name] = func() error { return os.Remove(path) }
		damages["a link: "+name] = func() error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		}
	}
	keep := filepath.Join(t.TempDir(), "keep")
	check(t, os.CopyFS(keep, os.DirFS(dir)))
	for name, damage := range damages {
		if err := damage(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := openSnapshot(t.Context(), dir,
			id); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: opening it gives %v, want kind %s", name, err, turnstone.KindIntegrity)
		}
		check(t, errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(keep))))
		if files, err := openSnapshot(t.Context(), dir, id); err != nil {
			t.Fatalf("the undamaged copy does not open: %v", err)
		} else {
			(&images{checkpoint: files}).close()
		}
	}
	check(t, damages["a flipped bit, times restored: pages.img"]())
	run()
	if _, err := openSnapshot(t.Context(), dir, id); err != nil {
		t.Errorf("not taken anew: %v", err)
	}
}

// TestRace checks that a snapshot is taken once for many concurrent callers.
func TestRace(t *testing.T) {
	m := testMachine(t, turntest.Home(t))
	h := &statedir.Dir{Root: t.TempDir()}
	var mu sync.Mutex
	taken := 0
	var wg sync.WaitGroup
	for range 4 {
		s, err := New(t.Context(), h, Options{Binary: builtRunsc(t), Progress: func(what string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(what, "taking the snapshot") {
				taken++
			}
		}})
		check(t, err)
		wg.Go(func() {
			vm, err := s.Restore(t.Context(), m)
			if err != nil {
				t.Error(err)
				return
			}
			_ = vm.Close()
		})
	}
	wg.Wait()
	if taken != 1 {
		t.Errorf("it was taken %d times", taken)
	}
	if left, _ := os.ReadDir(h.Path("sandboxes")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// hold is another process: it restores a sandbox, prints the IDs of all its processes, and waits
// for its own end.
func hold(dir string) error {
	var m substrate.Machine
	if err := json.Unmarshal([]byte(os.Getenv("TURNSTONE_TEST_MACHINE")), &m); err != nil {
		return err
	}
	m.Agent = func() ([]byte, error) { return os.ReadFile(os.Getenv("TURNSTONE_TEST_AGENT_FILE")) }
	ctx := context.Background()
	s, err := New(ctx, &statedir.Dir{Root: dir}, Options{Binary: os.Getenv("TURNSTONE_TEST_RUNSC")})
	if err != nil {
		return err
	}
	vm, err := s.Restore(ctx, m)
	if err != nil {
		return err
	}
	if _, _, err = substratetest.Configure(ctx, vm, m, nil); err != nil {
		return err
	}
	fmt.Println(strings.Trim(fmt.Sprint(descendants(os.Getpid())), "[]")) // in a single write
	select {}
}

// descendants returns the processes that pid has started, and their descendants.
func descendants(pid int) []int {
	var all []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		b, _ := os.ReadFile(path)
		for _, field := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

// machineJSON returns m in a form that another process can read.
func machineJSON(t *testing.T, m substrate.Machine) (spec, agentFile string) {
	t.Helper()
	agent, err := m.Agent()
	check(t, err)
	agentFile = filepath.Join(t.TempDir(), "agent")
	check(t, os.WriteFile(agentFile, agent, 0o600))
	m.Agent = nil
	b, err := json.Marshal(struct {
		Root, AgentDigest, RootDigest string
		Shape                         turnstone.Shape
	}{m.Root, string(m.AgentDigest), string(m.RootDigest), m.Shape})
	check(t, err)
	return string(b), agentFile
}

// TestKilled checks that the sandbox's processes are gone after this process ends in any way, and
// that the next start removes its folder.
//
//testrun:user
func TestKilled(t *testing.T) {
	shared := turntest.Home(t)
	m := testMachine(t, shared)
	spec, agentFile := machineJSON(t, m)
	h := &statedir.Dir{Root: t.TempDir()}
	pids := substratetest.Killed(t, h.Root, "TURNSTONE_TEST_MACHINE="+spec,
		"TURNSTONE_TEST_AGENT_FILE="+agentFile, "TURNSTONE_TEST_RUNSC="+builtRunsc(t))
	if len(pids) < 3 { // runsc, the sandbox, and the processes that run its code
		t.Fatalf("there are the processes %v", pids)
	}
	if names, _ := filepath.Glob(h.Path("sandboxes", "*", ".gvisor.filestore*")); len(names) > 0 {
		t.Errorf("what it wrote is still there: %v", names)
	}
	s := newSubstrate(t, h)
	vm, err := s.Restore(t.Context(), m)
	check(t, err)
	check(t, vm.Close())
	if left, err := os.ReadDir(h.Path("sandboxes")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestClosed checks that no process is left after Close, at any moment.
func TestClosed(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond,
		50 * time.Millisecond, 80 * time.Millisecond, 150 * time.Millisecond} {
		vm, err := s.Restore(t.Context(), m)
		check(t, err)
		time.Sleep(after)
		v := vm.(*sandbox)
		pids := append(descendants(v.PID()), v.PID())
		check(t, vm.Close())
		for _, pid := range pids {
			// The kernel kills a child some time after its parent has ended.
			for until := time.Now().Add(2 * time.Minute); substratetest.Alive(pid) &&
				time.Now().Before(until); {
				time.Sleep(5 * time.Millisecond)
			}
			if substratetest.Alive(pid) {
				t.Errorf("closed after %s: process %d of %v is still there", after, pid, pids)
			}
		}
		if _, err := os.Stat(v.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("closed after %s: %v", after, err)
		}
	}
}

// TestHostLimit checks that a sandbox whose agent does not limit its memory is ended.
//
//testrun:user
func TestHostLimit(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	v := started(t, s, m)
	meter := newMeter(filepath.Join(v.dir, pidFile))
	if meter == nil {
		t.Fatal("nothing tells of its memory")
	}
	defer meter.close()
	if n := meter.bytes(); n < 1<<20 || n > hardLimit(m.Shape)/2 {
		t.Errorf("it has %d bytes", n)
	}
	v.limit.Store(1)
	select {
	case <-v.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on beyond its limit")
	}
	if err := v.Err(); turnstone.KindOf(err) != turnstone.KindExhausted ||
		turnstone.HintOf(err) == "" {
		t.Errorf("it ended with %v", err)
	}
}

// TestDiskLimit checks that a sandbox whose kernel does not limit its writes is ended.
//
//testrun:user
func TestDiskLimit(t *testing.T) {
	h := turntest.Home(t)
	v := started(t, newSubstrate(t, h), testMachine(t, h))
	meter := newMeter(filepath.Join(v.dir, pidFile))
	if meter == nil || meter.store == nil {
		t.Fatal("nothing tells of its disk")
	}
	defer meter.close()
	if n := meter.written(); n > 64<<20 {
		t.Errorf("it has written %d bytes", n)
	}
	v.disk.Store(-1)
	select {
	case <-v.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on beyond its limit")
	}
	if err := v.Err(); turnstone.KindOf(err) != turnstone.KindExhausted ||
		turnstone.HintOf(err) == "" {
		t.Errorf("it ended with %v", err)
	}
}

// TestConsoleFlood checks that a sandbox that floods its console does not keep the host busy.
func TestConsoleFlood(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	v := &sandbox{Process: kit.New("", console.New(), ""), silent: make(chan struct{})}
	go v.readConsole(r)
	began := time.Now()
	_ = w.SetWriteDeadline(began.Add(time.Second))
	taken, line := 0, bytes.Repeat([]byte("flood "), 1000)
	for err == nil {
		var n int
		n, err = w.Write(line)
		taken += n
	}
	took := time.Since(began) // longer than a second on a busy machine
	if most := consoleBurst + consoleRate + int(took.Seconds()*consoleRate) + 1<<20; taken > most {
		t.Errorf("%d bytes were read in %v, and not %d at most", taken, took, most)
	}
	_ = w.Close()
	select {
	case <-v.silent:
	case <-time.After(2 * time.Minute):
		t.Error("its end is not seen")
	}
}

// TestProcessLimit checks that the host's kernel limits a sandbox's processes on the host, whatever
// root inside does.
//
//testrun:user
func TestProcessLimit(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	v := started(t, s, m)
	pid, err := processID(v.dir)
	if err != nil {
		t.Fatal(err)
	}
	var got unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NPROC, nil, &got); err != nil {
		t.Fatal(err)
	}
	if want := uint64(hostProcesses(m.Shape)); got.Cur != want || got.Max != want {
		t.Errorf("it may be %d processes, %d at most, and not %d", got.Cur, got.Max, want)
	}
}

func TestStatusField(t *testing.T) {
	for status, want := range map[string]int64{"VmRSS:\t  12 kB\nRssAnon:\t 345 kB\n": 345,
		"RssAnon: 0 kB": 0} {
		if n, err := statusField(status, "RssAnon:"); err != nil || n != want {
			t.Errorf("%q: %d, %v", status, n, err)
		}
	}
	for _, status := range []string{"", "RssAnon:", "RssAnon: x kB", "Rss: 1 kB"} {
		if n, err := statusField(status, "RssAnon:"); err == nil {
			t.Errorf("%q: %d", status, n)
		}
	}
}

// TestOtherRunsc checks that another program is not used as runsc.
func TestOtherRunsc(t *testing.T) {
	h := &statedir.Dir{Root: t.TempDir()}
	for name, script := range map[string]string{
		"gVisor's own": "#!/bin/sh\necho runsc version release-20260905.0\n",
		"failing":      "#!/bin/sh\nexit 1\n", "silent": "#!/bin/sh\n",
	} {
		bin := filepath.Join(t.TempDir(), "runsc")
		check(t, os.WriteFile(bin, []byte(script), 0o755))
		if _, err := New(t.Context(), h, Options{Binary: bin}); turnstone.KindOf(
			err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", name, err, turnstone.HintOf(err))
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := New(t.Context(), h, Options{}); turnstone.KindOf(
		err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
		t.Errorf("none: %v, hint %q", err, turnstone.HintOf(err))
	}
	if _, err := New(t.Context(), h,
		Options{Binary: filepath.Join(t.TempDir(), "runsc")}); turnstone.KindOf(
		err) != turnstone.KindUnavailable {
		t.Errorf("one that is not there: %v", err)
	}
	t.Setenv("PATH", filepath.Dir(builtRunsc(t)))
	s, err := New(t.Context(), h, Options{})
	check(t, err)
	if s.Binary() != builtRunsc(t) || !strings.Contains(s.Version(), edition) {
		t.Errorf("found %s, %s", s.Binary(), s.Version())
	}
}

// TestUsable checks that the verdict is determined once, and again for another host.
//
//testrun:user
func TestUsable(t *testing.T) {
	h := &statedir.Dir{Root: t.TempDir()}
	s := newSubstrate(t, h)
	asked := 0
	s.progress = func(string) { asked++ }
	for range 2 {
		if ok, why := s.Usable(t.Context()); !ok || !strings.Contains(why, "started") {
			t.Errorf("%v, %q", ok, why)
		}
	}
	s.kernel = "another"
	if ok, why := s.Usable(t.Context()); !ok {
		t.Error(why)
	}
	if asked != 2 {
		t.Errorf("it was found out %d times", asked)
	}
	fake := filepath.Join(t.TempDir(), "runsc")
	check(t, os.WriteFile(fake, []byte("#!/bin/sh\necho cannot create a namespace >&2; exit 1\n"),
		0o755))
	s.binary, s.kernel = fake, "a third"
	if ok, why := s.Usable(t.Context()); ok || !strings.Contains(why, "cannot create a namespace") {
		t.Errorf("%v, %q", ok, why)
	}
	// A failure is forgotten, because hosts are repaired; of a crash the first line counts.
	check(t, os.WriteFile(fake,
		[]byte("#!/bin/sh\nprintf 'panic: out of luck\\n\\ngoroutine 1\\n\\tmain.go:7\\n' >&2; "+
			"exit 2\n"), 0o755))
	if ok, why := s.Usable(t.Context()); ok || !strings.Contains(why, "cannot create a namespace") {
		t.Errorf("a no is not remembered: %v, %q", ok, why)
	}
	age := func() {
		path := h.Path("cache", "gvisor.json")
		var v verdict
		b, err := os.ReadFile(path)
		check(t, err)
		check(t, json.Unmarshal(b, &v))
		v.When = v.When.Add(-noLasts)
		b, err = json.Marshal(v)
		check(t, err)
		check(t, os.WriteFile(path, b, 0o600))
	}
	age()
	if ok, why := s.Usable(t.Context()); ok ||
		!strings.Contains(why, "does not start: panic: out of luck (exit status 2)") {
		t.Errorf("%v, %q", ok, why)
	}
	age()
	s.binary = builtRunsc(t)
	if ok, why := s.Usable(t.Context()); !ok {
		t.Error(why)
	}
}

func TestIdentityKey(t *testing.T) {
	base := identity{Format: 1, Runsc: "a", Shape: turnstone.DefaultShape()}
	seen := map[string]bool{base.key(): true}
	for _, change := range []func(*identity){
		func(i *identity) { i.Runsc = "b" }, func(i *identity) { i.Spec = "x" },
		func(i *identity) { i.HostCPU = "x" },
		func(i *identity) { i.Kernel = "x" }, func(i *identity) { i.Agent = "x" },
		func(i *identity) { i.Root = "x" },
		func(i *identity) { i.Shape.Network = false }, func(i *identity) { i.Shape.CPUs++ },
		func(i *identity) { i.Shape.Memory++ }, func(i *identity) { i.Shape.Disk++ },
	} {
		id := base
		change(&id)
		if seen[id.key()] {
			t.Errorf("%+v has another identity's key", id)
		}
		if id.differs(base) == "" {
			t.Errorf("%+v differs in nothing", id)
		}
		seen[id.key()] = true
	}
}

// TestSuperseded checks that replaced snapshots and long unused snapshots are removed.
func TestSuperseded(t *testing.T) {
	base := t.TempDir()
	now := identity{Format: snapshotFormat, Root: "r", Agent: "new",
		Shape: turnstone.DefaultShape()}
	other, replaced := now, now
	other.Root, replaced.Agent = "s", "old"
	long := other
	long.Kernel = "long ago"
	for _, id := range []identity{now, other, replaced, long} {
		dir := filepath.Join(base, id.key())
		b, _ := json.Marshal(manifest{Identity: id})
		check(t, errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, manifestFile), b,
			0o600)))
	}
	past := time.Now().Add(-2 * snapshots.Unused)
	check(t, os.Chtimes(filepath.Join(base, long.key(), manifestFile), past, past))
	removeSuperseded(base, now)
	for id, stays := range map[identity]bool{now: true, other: true, replaced: false, long: false} {
		if _, err := os.Stat(filepath.Join(base, id.key())); (err == nil) != stays {
			t.Errorf("%+v: %v, and should stay: %v", id, err, stays)
		}
	}
}

func TestSweep(t *testing.T) {
	base := t.TempDir()
	for _, name := range []string{folders + "sb_dead", folders + "sb_busy"} {
		check(t, os.Mkdir(filepath.Join(base, name), 0o700))
		check(t, os.WriteFile(filepath.Join(base, name+".lock"), nil, 0o600))
	}
	lock, err := statedir.TryAcquire(filepath.Join(base, folders+"sb_busy.lock"))
	if err != nil || lock == nil {
		t.Fatal(lock, err)
	}
	defer lock.Release()
	sweep(base)
	entries, _ := os.ReadDir(base)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != folders+"sb_busy "+folders+"sb_busy.lock" {
		t.Errorf("there is %q", got)
	}
}

// TestImageRepaired checks that a changed image of this package is written again.
//
//testrun:user
func TestImageRepaired(t *testing.T) {
	m := testMachine(t, turntest.Home(t))
	s := newSubstrate(t, &statedir.Dir{Root: t.TempDir()})
	own, err := s.ensureImages(t.Context(), m)
	check(t, err)
	before, err := filestamp.Of(t.Context(), own.root)
	check(t, err)
	check(t, os.Truncate(own.root, 5000))
	_, err = s.ensureImages(t.Context(), m)
	check(t, err)
	after, err := filestamp.Of(t.Context(), own.root)
	check(t, err)
	if before.Digest != after.Digest {
		t.Errorf("it was %s, and is %s", before.Digest, after.Digest)
	}
	m.AgentDigest = turnstone.DigestBytes(nil)
	if _, err := s.ensureImages(t.Context(), m); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("an agent that is not what its digest says: %v", err)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
