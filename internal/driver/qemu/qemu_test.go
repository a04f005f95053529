package qemu

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) {
	substratetest.Child(hold, benchmark)
	os.Exit(m.Run())
}

func newSubstrate(t *testing.T, h *statedir.Dir, m *substrate.Machine) *Substrate {
	t.Helper()
	s, err := New(t.Context(), h, Options{Progress: func(what string) { t.Log(what) }, Probe: m})
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	if v := s.KVM(t.Context(), nil); !v.Usable {
		t.Logf("KVM: %s", v.Reason)
	}
	return s
}

var guestNetwork = wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
	DNS: []string{network.DNS}}

//testrun:user kvm
func TestConformance(t *testing.T) {
	h := turntest.Home(t)
	m := turntest.Machine(t, h, "base")
	s := newSubstrate(t, h, &m)
	if turntest.UnderKVM() && !s.Accelerated() {
		t.Fatalf("KVM does not run guests: %+v", s.KVM(t.Context(), nil))
	}
	substratetest.Run(t, s, substratetest.Config{Machine: m, Network: guestNetwork,
		MakeHome: disk.MakeHome, HostOnly: turntest.HostOnly(s.Name()),
		Elsewhere: func(t *testing.T) substrate.Substrate {
			return newSubstrate(t,
				&statedir.Dir{Root: t.TempDir()}, &m)
		}})
}

// TestDamagedSnapshot damages a snapshot, and checks that it is taken again, never used.
func TestDamagedSnapshot(t *testing.T) {
	shared := turntest.Home(t)
	m := turntest.Machine(t, shared, "base")
	m.Shape.Memory = 192 << 20
	h := &statedir.Dir{Root: t.TempDir()}
	s := newSubstrate(t, h, &m)
	id := s.identity(m)
	dir := h.Path("snapshots", id.key())
	run := func() {
		t.Helper()
		vm, client := substratetest.Clone(t, s, m, &guestNetwork)
		if out, _ := substratetest.Shell(t, client, "echo fine"); out != "fine\n" {
			t.Errorf("the restored machine says %q", out)
		}
		_ = vm.Close()
	}
	run()
	opens(t, dir, id)
	if err := flipMemory(dir); err != nil {
		t.Fatal(err)
	}
	run()
	opens(t, dir, id)
}

// TestDamages checks that no damaged snapshot opens.
func TestDamages(t *testing.T) {
	id := identity{Format: snapshotFormat, QEMU: "QEMU emulator version 1"}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	edit := func(name string, change func([]byte) []byte) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, change(b), 0o600)
		}
	}
	for name, damage := range map[string]func(dir string) error{
		"a flipped bit of memory, times restored": flipMemory,
		"a write to the scratch disk": func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, scratchFile), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{1}, 5<<10)
			return errors.Join(err, f.Close())
		},
		"cut memory":                 func(dir string) error { return os.Truncate(filepath.Join(dir, ramFile), 100<<10) },
		"no memory":                  func(dir string) error { return os.Remove(filepath.Join(dir, ramFile)) },
		"memory that is a link":      func(dir string) error { return relink(filepath.Join(dir, ramFile)) },
		"a flipped bit of the state": edit(stateFile, flip),
		"cut state":                  edit(stateFile, func(b []byte) []byte { return b[:len(b)/2] }),
		"garbage manifest":           edit(manifestFile, func([]byte) []byte { return []byte("{{{") }),
		"another QEMU": edit(manifestFile, func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("QEMU emulator"), []byte("QEMU  emulator"))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			dir := smallSnapshot(t, id)
			opens(t, dir, id)
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := openSnapshot(t.Context(), dir, id); turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Errorf("opening it gives %v, want kind %s", err, turnstone.KindIntegrity)
			}
		})
	}
}

// smallSnapshot returns the folder of a snapshot as it is on disk, with little in its files.
func smallSnapshot(t *testing.T, id identity) (dir string) {
	t.Helper()
	dir = t.TempDir()
	state := []byte("state")
	for name, content := range map[string][]byte{ramFile: bytes.Repeat([]byte("memory"), 32<<10),
		stateFile: state, scratchFile: make([]byte, 64<<10)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	man := manifest{Identity: id, State: turnstone.DigestBytes(state)}
	if err := man.Seal(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// opens fails the test if a snapshot does not open.
func opens(t *testing.T, dir string, id identity) {
	t.Helper()
	snap, err := openSnapshot(t.Context(), dir, id)
	if err != nil {
		t.Fatalf("an intact snapshot does not open: %v", err)
	}
	_ = snap.ram.Close()
}

// flipMemory changes a bit of a snapshot's memory, and nothing that a look at the file would show.
func flipMemory(dir string) error {
	path := filepath.Join(dir, ramFile)
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, st.Size()/3)
	b[0] ^= 1
	_, werr := f.WriteAt(b, st.Size()/3)
	return errors.Join(err, werr, f.Close(), os.Chtimes(path, st.ModTime(), st.ModTime()))
}

func relink(path string) error {
	return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
}

// TestTouchedSnapshot checks that a copy with other times and inodes is still intact.
func TestTouchedSnapshot(t *testing.T) {
	dir := t.TempDir()
	id := identity{Format: snapshotFormat, QEMU: "x"}
	ram, state := filepath.Join(dir, ramFile), []byte("state")
	if err := errors.Join(os.WriteFile(ram, []byte("memory"), 0o600),
		os.WriteFile(filepath.Join(dir, stateFile), state, 0o600)); err != nil {
		t.Fatal(err)
	}
	st, err := filestamp.Of(t.Context(), ram)
	if err != nil {
		t.Fatal(err)
	}
	scratch := filepath.Join(dir, scratchFile)
	if err := os.WriteFile(scratch, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	quick, err := filestamp.Quick(scratch)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(manifest{Identity: id, State: turnstone.DigestBytes(state), RAM: st,
		Scratch: quick})
	if err := os.WriteFile(filepath.Join(dir, manifestFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(ram, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	snap, err := openSnapshot(t.Context(), dir, id)
	if err != nil {
		t.Fatal(err)
	}
	_ = snap.ram.Close()
	if err := os.Chtimes(scratch, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := openSnapshot(t.Context(), dir,
		id); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("a touched scratch disk: %v", err)
	}
	if _, err := openSnapshot(t.Context(), t.TempDir(), id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no snapshot: %v", err)
	}
}

// hold is another process: it restores a machine, prints QEMU's pid, and waits for its own end.
func hold(dir string) error {
	var m substrate.Machine
	if err := json.Unmarshal([]byte(os.Getenv("TURNSTONE_TEST_MACHINE")), &m); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := New(ctx, &statedir.Dir{Root: dir}, Options{Kernel: m.GuestKernel()})
	if err != nil {
		return err
	}
	vm, err := s.Restore(ctx, m)
	if err != nil {
		return err
	}
	fmt.Println(vm.(*machine).PID())
	select {}
}

// TestKilled checks that QEMU and its files are gone after this process ends in any way.
//
//testrun:user
func TestKilled(t *testing.T) {
	h := turntest.Home(t)
	m := turntest.Machine(t, h, "base")
	spec, _ := json.Marshal(m)
	substratetest.Killed(t, h.Root, "TURNSTONE_TEST_MACHINE="+string(spec))
	// The home is that of all tests, and those that run now have folders until they end.
	var left []string
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		all, err := os.ReadDir(h.Path("sandboxes"))
		if err != nil {
			t.Fatal(err)
		}
		var now []string
		for _, e := range all {
			if left == nil || slices.Contains(left, e.Name()) {
				now = append(now, e.Name())
			}
		}
		if left = now; len(left) == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("left behind: %v", left)
		}
	}
}

func TestSweep(t *testing.T) {
	base := t.TempDir()
	dead, busy := filepath.Join(base, snapshots.Virtual.New+"aaaa-1"),
		filepath.Join(base, snapshots.Virtual.New+"bbbb-1")
	for _, dir := range []string{dead, busy} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := statedir.TryAcquire(filepath.Join(base, "bbbb.lock"))
	if err != nil || lock == nil {
		t.Fatal(lock, err)
	}
	defer lock.Release()
	snapshots.Virtual.Sweep(base)
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dead process's folder is still there: %v", err)
	}
	if _, err := os.Stat(busy); err != nil {
		t.Errorf("a living process's folder is gone: %v", err)
	}
}

// TestSuperseded checks that replaced snapshots and long unused snapshots are removed.
func TestSuperseded(t *testing.T) {
	base := t.TempDir()
	now := identity{Format: snapshotFormat, Root: "r", Init: "new", Shape: turnstone.DefaultShape()}
	other := now
	other.Root = "s"
	replaced := now
	replaced.Init = "old"
	long := other
	long.Kernel = "long ago"
	older, own := now, now
	older.Kernel = "an older one of Turnstone's"
	own.Kernel, own.OwnKernel = "the user's, used in turn", true
	for _, id := range []identity{now, other, replaced, long, older, own} {
		dir := filepath.Join(base, id.key())
		b, _ := json.Marshal(manifest{Identity: id})
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, manifestFile),
			b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * snapshots.Unused)
	if err := os.Chtimes(filepath.Join(base, long.key(), manifestFile), past, past); err != nil {
		t.Fatal(err)
	}
	removeSuperseded(base, now)
	for id, stays := range map[identity]bool{now: true, other: true, replaced: false, long: false,
		older: false, own: true} {
		if _, err := os.Stat(filepath.Join(base, id.key())); (err == nil) != stays {
			t.Errorf("%+v: %v, and should stay: %v", id, err, stays)
		}
	}
}

func TestArguments(t *testing.T) {
	shape := turnstone.Shape{CPUs: 2, Memory: 512 << 20, Disk: 1 << 30, Network: true}
	boot, restore := strings.Join(arguments(engine{accel: accelTCG}, shape, false, disks{}), " "),
		strings.Join(arguments(engine{accel: accelTCG}, shape, true, disks{}), " ")
	for _, must := range []string{
		"-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-nodefaults", "-no-user-config",
		"-no-reboot", "-display none", "-smp 2", "-m 524288K", "read-only=on",
		"-netdev stream,id=net,server=off,addr.type=fd",
	} {
		if !strings.Contains(boot, must) || !strings.Contains(restore, must) {
			t.Errorf("%q is missing in one of\n%s\n%s", must, boot, restore)
		}
	}
	if !strings.Contains(boot, "share=on") || !strings.Contains(restore, "share=off") {
		t.Error("memory must be shared when booted and private when restored")
	}
	shape.Network = false
	for _, restore := range []bool{false, true} {
		if off := strings.Join(arguments(engine{accel: accelTCG}, shape, restore, disks{}),
			" "); strings.Contains(off, "net") {
			t.Errorf("with the network off there still is: %s", off)
		}
	}
}

func TestStubKernel(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(stubKernel()))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Progs) != 2 || f.Progs[0].Type != elf.PT_LOAD || f.Progs[1].Type != elf.PT_NOTE {
		t.Errorf("segments: %+v", f.Progs)
	}
}

func TestIdentityKey(t *testing.T) {
	base := identity{Format: 1, QEMU: "a", Shape: turnstone.DefaultShape()}
	seen := map[string]bool{base.key(): true}
	for _, change := range []func(*identity){
		func(i *identity) { i.QEMU = "b" }, func(i *identity) { i.Accel = accelKVM },
		func(i *identity) { i.CPUModel = "x" },
		func(i *identity) { i.HostCPU = "x" }, func(i *identity) { i.Kernel = "x" },
		func(i *identity) { i.Init = "x" },
		func(i *identity) { i.Root = "x" }, func(i *identity) { i.Arguments = "x" },
		func(i *identity) { i.Shape.Network = false },
		func(i *identity) { i.Shape.CPUs++ }, func(i *identity) { i.Shape.Memory++ },
		func(i *identity) { i.Shape.Disk++ },
	} {
		id := base
		change(&id)
		if seen[id.key()] {
			t.Errorf("%+v has another identity's key", id)
		}
		seen[id.key()] = true
	}
}

func TestMissingQEMU(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := New(t.Context(), &statedir.Dir{Root: t.TempDir()},
		Options{Binary: filepath.Join(t.TempDir(), "qemu")})
	if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
		t.Errorf("%v, hint %q", err, turnstone.HintOf(err))
	}
}

// TestVersionCache checks that a replaced binary is asked again.
func TestVersionCache(t *testing.T) {
	h, bin := &statedir.Dir{Root: t.TempDir()}, filepath.Join(t.TempDir(), "qemu")
	for _, version := range []string{"QEMU 1", "QEMU 1", "QEMU 2"} {
		script := "#!/bin/sh\necho " + version + "\n"
		if err := os.WriteFile(bin, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		s, err := New(t.Context(), h, Options{Binary: bin})
		if err != nil {
			t.Fatal(err)
		}
		if s.Version() != version {
			t.Errorf("version %q, want %q", s.Version(), version)
		}
	}
}

// TestMayOpen checks that for root another user than root opens the device.
func TestMayOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gid := uint32(os.Getgid())
	for _, c := range []struct {
		mode os.FileMode
		who  *syscall.Credential
		may  bool
	}{
		{0o600, nil, true},
		{0o600, &syscall.Credential{}, false},
		{0o660, &syscall.Credential{Groups: []uint32{gid + 1}}, false},
		{0o660, &syscall.Credential{Groups: []uint32{gid}}, true},
		{0o640, &syscall.Credential{Groups: []uint32{gid}}, false},
		{0o666, &syscall.Credential{}, true},
	} {
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := mayOpen(path, c.who); (err == nil) != c.may || err != nil &&
			!errors.Is(err, fs.ErrPermission) {
			t.Errorf("mode %o, %+v: %v", c.mode, c.who, err)
		}
	}
	if err := mayOpen(path+"-none", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no device: %v", err)
	}
}

func TestNoSpaceEvent(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	m := &machine{Process: kit.New("sb_x", console.New(), "")}
	m.agent, _, _ = socketpair()
	if err := m.spawn(cmd); err != nil {
		t.Fatal(err)
	}
	m.event(event{Name: "BLOCK_IO_ERROR",
		Data: json.RawMessage(`{"action":"stop","nospace":true}`)})
	<-m.Done()
	if turnstone.KindOf(m.Err()) != turnstone.KindExhausted {
		t.Errorf("got %v, want kind %s", m.Err(), turnstone.KindExhausted)
	}
}

// TestBusError runs a machine whose memory file does not fit the disk.
func TestBusError(t *testing.T) {
	m := &machine{Process: kit.New("sb_x", console.New(), "")}
	m.agent, _, _ = socketpair()
	if err := m.spawn(exec.Command("sh", "-c", "kill -BUS $$")); err != nil {
		t.Fatal(err)
	}
	<-m.Done()
	if turnstone.KindOf(m.Err()) != turnstone.KindExhausted || turnstone.HintOf(m.Err()) == "" {
		t.Errorf("got %v, want kind %s", m.Err(), turnstone.KindExhausted)
	}
}

func FuzzMonitor(f *testing.F) {
	f.Add([]byte(`{"QMP":{}}` + "\n" + `{"return":{}}` + "\n" + `{"event":"STOP","data":{}}`))
	f.Add([]byte(`{"error":{"class":"GenericError","desc":"x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs, err := socketpair()
		if err != nil {
			t.Fatal(err)
		}
		m := newMonitor(ours, func(event) {})
		waits, err := m.send(negotiate)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 1<<16 {
			b = b[:1<<16] // fits the socket's buffer
		}
		_, _ = theirs.Write(b)
		_ = theirs.Close()
		select {
		case <-waits[0]:
		case <-time.After(2 * time.Minute):
			t.Fatal("no answer and no error")
		}
	})
}
