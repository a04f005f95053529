package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	guestmachine "turnstone.dev/turnstone/internal/guest/machine"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestAgreement checks the constants that the host and the agent share without importing each
// other.
func TestAgreement(t *testing.T) {
	if agentPort != guestmachine.VsockPort || hello != guestmachine.Hello ||
		HelloSize != guestmachine.HelloSize || rootName != guestmachine.RootSerial ||
		console.ReadyLine != guestmachine.ReadyLine {
		t.Error("host and agent differ")
	}
	if n := len(kernelArgs()); n > 2048-200 { // space for Firecracker's additions
		t.Errorf("the command line has %d bytes", n)
	}
	for _, weak := range []string{"mitigations", "hardened_usercopy", "randomize_kstack_offset",
		"init_on_alloc", "norandmaps", "nokaslr", "lsm="} {
		if strings.Contains(kernelArgs(), weak) {
			t.Errorf("the guest kernel is not hardened: %s", kernelArgs())
		}
	}
	if strings.Contains(kernelArgs(), "nomodule") {
		t.Error("the agent could not load its drivers")
	}
}

var bootSequence = []string{
	"PUT /machine-config", "PUT /boot-source",
	"PUT /drives/root", "PUT /drives/scratch",
	"PUT /drives/layer0", "PUT /drives/layer1", "PUT /drives/layer2", "PUT /drives/layer3",
	"PUT /drives/layer4", "PUT /drives/layer5",
	"PUT /drives/home", "PUT /vsock", "PUT /entropy", "PUT /balloon", "PUT /actions",
}

func TestBoot(t *testing.T) {
	b := newBench(t, "")
	vm, err := b.s.Boot(within(t), b.m)
	check(t, err)
	if got := requests(notes(t, b.log)); !slices.Equal(got, bootSequence) {
		t.Errorf("requests: %v", got)
	}
	speak(t, vm)
	b.nothingLeft(t)
}

func TestRestore(t *testing.T) {
	b := newBench(t, "")
	for i := range 3 {
		check(t, os.RemoveAll(b.log))
		vm, err := b.s.Restore(within(t), b.m)
		check(t, err)
		want := []string{"PUT /snapshot/load"}
		if i == 0 {
			want = append(append(slices.Clone(bootSequence), "PATCH /vm", "PUT /snapshot/create"),
				want...)
		}
		if got := requests(notes(t, b.log)); !slices.Equal(got, want) {
			t.Errorf("start %d: requests %v, want %v", i, got, want)
		}
		speak(t, vm)
	}
	b.nothingLeft(t)
	if len(b.told) != 1 {
		t.Errorf("told %q", b.told)
	}
	// Most of the memory is zeros, which use no space.
	dir := b.s.home.Path("snapshots", b.s.identity(b.m).key())
	snap, err := openSnapshot(t.Context(), dir, b.s.identity(b.m))
	check(t, err)
	if got := onDisk(t, snap.ram); got > 64<<10 {
		t.Errorf("16 MiB with one page that is not zeros take %d bytes", got)
	}
	memory, err := os.ReadFile(snap.ram)
	check(t, err)
	if len(memory) != 16<<20 || !strings.HasPrefix(string(memory[3<<20:]),
		"the guest's memory\x00") {
		t.Error("the memory is not what was written")
	}
}

// TestDisks checks that each disk is the right file, and that read-only disks cannot be written.
func TestDisks(t *testing.T) {
	b := newBench(t, "")
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	check(t, vm.Close())
	for name, change := range map[string]func(*substrate.Machine){
		"none": func(*substrate.Machine) {},
		"layers": func(m *substrate.Machine) {
			m.Layers = []string{b.slot(t, "one", 0o600),
				b.slot(t, "two", 0o600)}
		},
		"home": func(m *substrate.Machine) { m.Home = b.slot(t, "homedisk", 0o600) },
		"full": func(m *substrate.Machine) {
			for i := range substrate.MaxLayers {
				m.Layers = append(m.Layers, b.slot(t, fmt.Sprint("full", i), 0o600))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := b.m
			change(&m)
			check(t, os.RemoveAll(b.log))
			vm, err := b.s.Restore(within(t), m)
			check(t, err)
			defer func() { _ = vm.Close() }()
			b.checkDrives(t, notes(t, b.log), m, false)
			disk, err := vm.(substrate.Disker).Disk()
			check(t, err)
			_ = disk.Close()
		})
	}
	b.nothingLeft(t)
}

// checkDrives checks a stand-in's log of its disks. In a jail, the replacement of a home accepts a
// page of writes.
func (b *bench) checkDrives(t *testing.T, all []noted, m substrate.Machine, jailed bool) {
	t.Helper()
	zeros := strings.Repeat("\x00", 32)
	drives := map[string]noted{}
	for _, n := range all {
		if n.Drive != "" {
			drives[n.Drive] = n
		}
	}
	expect := func(name, head string, size int64, writable bool) {
		t.Helper()
		got := drives[name]
		if !strings.HasPrefix(got.Head, head) || got.Size != size || got.Writable != writable {
			t.Errorf("%s is %q of %d bytes, writable %v; want %q of %d, %v", name, got.Head,
				got.Size, got.Writable, head, size, writable)
		}
	}
	expect("root", "template\n", 9, false)
	expect("scratch", zeros, int64(m.Shape.Disk), true)
	for i := range substrate.MaxLayers {
		head := zeros
		if i < len(m.Layers) {
			head = "image " + filepath.Base(m.Layers[i]) + "\n"
		}
		expect(substrate.LayerSerial(i), head, substrate.SlotSize, false)
	}
	head := zeros
	if m.Home != "" {
		head = "image homedisk\n"
	}
	expect("home", head, substrate.SlotSize, m.Home != "" || jailed)
}

// TestScratch checks that a machine's scratch disk is its own copy, which outlives the machine for
// a holder of a descriptor.
func TestScratch(t *testing.T) {
	b := newBench(t, "")
	one, err := b.s.Restore(within(t), b.m)
	check(t, err)
	defer func() { _ = one.Close() }()
	two, err := b.s.Restore(within(t), b.m)
	check(t, err)
	defer func() { _ = two.Close() }()
	d1, err := one.(*machine).Disk()
	check(t, err)
	defer func() { _ = d1.Close() }()
	d2, err := two.(*machine).Disk()
	check(t, err)
	defer func() { _ = d2.Close() }()
	_, err = d1.WriteAt([]byte("mine"), 0)
	check(t, err)
	check(t, one.Close())
	buf := make([]byte, 4)
	if _, err := d1.ReadAt(buf, 0); err != nil || string(buf) != "mine" {
		t.Errorf("%q, %v", buf, err)
	}
	if _, err := d2.ReadAt(buf, 0); err != nil || string(buf) == "mine" {
		t.Errorf("the clone has %q, %v", buf, err)
	}
	if _, err := one.(*machine).Disk(); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("the disk of a closed machine: %v", err)
	}
	vm, err := b.s.Restore(within(t), b.m) // the snapshot's disk is unchanged
	check(t, err)
	speak(t, vm)
	if len(b.told) != 1 {
		t.Errorf("told %q", b.told)
	}
}

// TestFaults checks that each fault is reported as an error, and that nothing is left.
func TestFaults(t *testing.T) {
	whole := newBench(t, "")
	vm, err := whole.s.Restore(within(t), whole.m) // a snapshot that the second part loads
	check(t, err)
	check(t, vm.Close())
	const boot, load = false, true
	for _, tc := range []struct {
		fault   string
		restore bool
		kind    turnstone.Kind
		text    string
	}{
		{"exit", boot, turnstone.KindDead, "something is broken"},
		{"code", boot, turnstone.KindDead, "seccomp"},
		{"garbage", boot, turnstone.KindUnavailable, "GET /"},
		{"oversize:/", boot, turnstone.KindUnavailable, "longer than"},
		{"odd:/", boot, turnstone.KindUnavailable, "answers 500"},
		{"refuse:/machine-config", boot, turnstone.KindUnavailable,
			"it was ?[31mtold to refuse /machine-config"},
		{"refuse:/actions", boot, turnstone.KindUnavailable, "to refuse /actions"},
		{"oversize:/actions", boot, turnstone.KindUnavailable, "longer than"},
		{"die:/actions", boot, turnstone.KindDead, "SIGBUS"},
		{"die:/snapshot/load", load, turnstone.KindDead, "SIGBUS"},
		{"refuse:/snapshot/load", load, turnstone.KindUnavailable, "to refuse /snapshot/load"},
		{"panic", boot, turnstone.KindDead, "kernel panicked: VFS: Unable to mount ?[2J root fs"},
		{"panic and hang", boot, turnstone.KindDead, "kernel panicked: No working init found"},
		{"poweroff", boot, turnstone.KindDead, "shut its machine down"},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			s := whole.substrate(t, tc.fault)
			// Another program with the same version text: the snapshot fits.
			start := s.Boot
			if tc.restore {
				start = s.Restore
			}
			vm, err := start(within(t), whole.m)
			if err == nil {
				_ = vm.Close()
				t.Fatal("it started")
			}
			if turnstone.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("kind %s: %v", turnstone.KindOf(err), err)
			}
			whole.nothingLeft(t)
		})
	}
}

// TestSlow checks that slow operations, and operations that need a retry, are no faults.
func TestSlow(t *testing.T) {
	b := newBench(t, "")
	for _, fault := range []string{"late-socket", "refused", "reset"} {
		t.Run(fault, func(t *testing.T) {
			vm, err := b.substrate(t, fault).Restore(within(t), b.m)
			check(t, err)
			speak(t, vm)
		})
	}
	b.nothingLeft(t)
}

// TestHang checks that a hanging operation ends with its caller's context.
func TestHang(t *testing.T) {
	b := newBench(t, "")
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	check(t, vm.Close())
	for _, fault := range []string{"no-socket", "hang:/", "hang:/snapshot/load", "no-agent",
		"bad-ok", "bad-echo"} {
		t.Run(fault, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) //wait: it is meant to expire
			defer cancel()
			vm, err := b.substrate(t, fault).Restore(ctx, b.m)
			if err == nil {
				_ = vm.Close()
			}
			if turnstone.KindOf(err) != turnstone.KindCanceled ||
				!errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("kind %s: %v", turnstone.KindOf(err), err)
			}
			b.nothingLeft(t)
		})
	}
	t.Run("silent", func(t *testing.T) {
		// On a busy machine the kernel may have said nothing yet when the shortest time is over.
		for wait := 500 * time.Millisecond; ; wait *= 10 {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			_, err := b.substrate(t, "silent").Boot(ctx, b.m)
			cancel()
			if err != nil && strings.Contains(err.Error(), "still thinking") {
				break
			}
			if err == nil || wait >= 50*time.Second {
				t.Errorf("got %v", err)
				break
			}
		}
		b.nothingLeft(t)
	})
}

func TestCanceled(t *testing.T) {
	b := newBench(t, "")
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond,
		20 * time.Millisecond, 60 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		vm, err := b.s.Restore(ctx, b.m)
		cancel()
		if err == nil {
			_ = vm.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) ||
			turnstone.KindOf(err) != turnstone.KindCanceled {
			t.Errorf("cancelled after %s: %s %v", after, turnstone.KindOf(err), err)
		}
	}
	b.nothingLeft(t)
}

func TestClose(t *testing.T) {
	b := newBench(t, "")
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	if vm.Err() != nil || vm.Scratch() != "scratch" || !strings.HasPrefix(string(vm.ID()), "sb_") {
		t.Errorf("%v, %q, %q", vm.Err(), vm.Scratch(), vm.ID())
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := vm.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	<-vm.Done()
	if vm.Err() != nil {
		t.Errorf("a closed machine has the error %v", vm.Err())
	}
	if _, err := vm.Agent().Read(make([]byte, 1)); err == nil {
		t.Error("its channel is open")
	}
	b.nothingLeft(t)
}

func TestEndsByItself(t *testing.T) {
	b := newBench(t, "")
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	check(t, vm.(*machine).Kill())
	<-vm.Done()
	if turnstone.KindOf(vm.Err()) != turnstone.KindDead {
		t.Errorf("got %v", vm.Err())
	}
	if err := vm.(substrate.Pauser).Pause(t.Context()); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("pausing what is dead: %v", err)
	}
	if err := vm.(substrate.Snapshotter).Snapshot(t.Context(),
		filepath.Join(t.TempDir(), "s")); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("a snapshot of what is dead: %v", err)
	}
}

func TestPause(t *testing.T) {
	b := newBench(t, "")
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	p := vm.(substrate.Pauser)
	for range 2 {
		check(t, p.Pause(t.Context()))
		check(t, p.Resume(t.Context()))
	}
	speak(t, vm)
}

func TestRefusals(t *testing.T) {
	b := newBench(t, "")
	for name, tc := range map[string]struct {
		change func(*substrate.Machine)
		kind   turnstone.Kind
	}{
		"cpus":      {func(m *substrate.Machine) { m.Shape.CPUs = 33 }, turnstone.KindInvalid},
		"no memory": {func(m *substrate.Machine) { m.Shape.Memory = 0 }, turnstone.KindInvalid},
		"bzImage": {func(m *substrate.Machine) {
			m.Kernel, m.KernelDigest = m.Root,
				m.RootDigest
		}, turnstone.KindUnavailable},
		"layers": {func(m *substrate.Machine) {
			m.Layers = make([]string,
				substrate.MaxLayers+1)
		}, turnstone.KindInvalid},
		"layer size": {func(m *substrate.Machine) { m.Layers = []string{m.Root} },
			turnstone.KindIntegrity},
		"no layer": {func(m *substrate.Machine) { m.Layers = []string{"/none"} },
			turnstone.KindIntegrity},
		"no home": {func(m *substrate.Machine) { m.Home = "/none" }, turnstone.KindIntegrity},
	} {
		m := b.m
		tc.change(&m)
		vm, err := b.s.Restore(within(t), m)
		if err == nil {
			_ = vm.Close()
		}
		if turnstone.KindOf(err) != tc.kind {
			t.Errorf("%s: kind %s, %v", name, turnstone.KindOf(err), err)
		}
	}
	b.nothingLeft(t)
}

func TestNew(t *testing.T) {
	b := newBench(t, "")
	h := &statedir.Dir{Root: t.TempDir()}
	for name, options := range map[string]Options{
		"no program":  {Binary: "/none/firecracker"},
		"no version":  {Binary: b.script(t, "mute", "echo Potato 3")},
		"old":         {Binary: b.script(t, "old", "echo Firecracker v1.4.0")},
		"fails":       {Binary: b.script(t, "fails", "exit 3")},
		"is no file":  {Binary: t.TempDir()},
		"not runable": {Binary: b.m.Root},
	} {
		_, err := New(t.Context(), h, options)
		if turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(turnstone.HintOf(err), "releases") {
			t.Errorf("%s: %v (%s)", name, err, turnstone.HintOf(err))
		}
	}
	path, version, err := Find(t.Context(), h, Options{Binary: b.s.binary,
		Jailer: b.script(t, "j", sayJailer)})
	if err != nil || path != b.s.binary || version != "Firecracker v1.17.0" {
		t.Errorf("%s, %s, %v", path, version, err)
	}
	if path, _, err := Find(t.Context(), h, Options{Binary: b.s.binary,
		Jailer: b.script(t, "j", sayJailer)}); err != nil || path != b.s.binary {
		t.Errorf("%s, %v", path, err)
	}
	if os.Geteuid() == 0 {
		if _, err := New(t.Context(), h, Options{Binary: b.s.binary,
			Jailer: "/none/jailer"}); turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(err.Error(), "/none/jailer: no such file") ||
			strings.Count(err.Error(), "/none") > 1 {
			t.Errorf("root with a jailer that is not there: %v", err)
		}
	}
}

func TestRelease(t *testing.T) {
	for text, want := range map[string]release{"Firecracker v1.17.0-dev": {1, 17, 0},
		"Firecracker v1.9.1-dirty": {1, 9, 1}, "Firecracker v12.0.3": {12, 0, 3}} {
		if got, err := parseRelease(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if (release{1, 9, 0}).atLeast(1, 12) || !(release{2, 0, 0}).atLeast(1, 12) ||
		!(release{1, 12, 0}).atLeast(1, 12) {
		t.Error("releases are compared wrongly")
	}
}

func TestLimits(t *testing.T) {
	b := newBench(t, "")
	before := b.s.identity(b.m)
	b.s.limits = limits{bytes: 1 << 20, ops: 100}
	if b.s.identity(b.m) == before {
		t.Error("a snapshot without limits fits a machine with them")
	}
	vm, err := b.s.Boot(within(t), b.m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	limited := 0
	for _, n := range notes(t, b.log) {
		if strings.Contains(n.Body,
			`"rate_limiter":{"bandwidth":{"size":1048576,"refill_time":1000},"ops":{"size":100,"refill_time":1000}}`) {
			limited++
		}
	}
	if limited != 2 {
		t.Errorf("%d disks are limited", limited)
	}
}

// TestConcurrent checks that many concurrent starts take a single snapshot.
func TestConcurrent(t *testing.T) {
	b := newBench(t, "")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			vm, err := b.s.Restore(t.Context(), b.m)
			if err != nil {
				t.Error(err)
				return
			}
			_ = vm.Close()
		})
	}
	wg.Wait()
	taken := 0
	for _, r := range requests(notes(t, b.log)) {
		if r == "PUT /snapshot/create" {
			taken++
		}
	}
	if taken != 1 {
		t.Errorf("%d snapshots were taken", taken)
	}
	b.nothingLeft(t)
}
