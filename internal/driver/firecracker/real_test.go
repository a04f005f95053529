package firecracker

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// The tests of this file check a running Firecracker and its guest. They run wherever
// TestConformance does.

// firecrackerOf returns the process ID of a machine's Firecracker.
func firecrackerOf(t testing.TB, m *machine) int {
	t.Helper()
	pid, err := m.pid()
	check(t, err)
	return pid
}

// TestRealConfined checks that each thread of Firecracker has its own filter of system calls, that
// none has a capability or can get a capability, and that its control group has its limit.
//
//testrun:kvm
func TestRealConfined(t *testing.T) {
	s, m := started(t)
	vm, _ := substratetest.Clone(t, s, m, nil)
	pid := firecrackerOf(t, vm.(*machine))
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	check(t, err)
	if len(tasks) < 2+m.Shape.CPUs { // Firecracker's main thread, the API's, and each CPU's
		t.Errorf("%d threads", len(tasks))
	}
	want := []string{"Seccomp:\t2\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
		"NoNewPrivs:\t1\n"}
	if m := vm.(*machine); m.owner == nobody {
		want = append(want, "Uid:\t65534\t65534\t65534\t65534\n",
			"Gid:\t65534\t65534\t65534\t65534\n")
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		check(t, err)
		for _, line := range want {
			if !strings.Contains(string(b), line) {
				t.Errorf("%s has not got %q:\n%s", path, line, b)
			}
		}
	}
	group := vm.(*machine).cgroup
	if group == "" {
		t.Log("no control group here")
		return
	}
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	check(t, err)
	if !strings.Contains(string(in), "/"+cgroupParent+"/"+filepath.Base(group)+"\n") {
		t.Errorf("it is in the control groups %q", in)
	}
	limit, err := os.ReadFile(filepath.Join(group, "pids.max"))
	check(t, err)
	if got := strings.TrimSpace(string(limit)); got != strconv.Itoa(m.Shape.CPUs+16) {
		t.Errorf("its limit of processes is %s", got)
	}
	check(t, vm.Close())
	if _, err := os.Stat(group); err == nil {
		t.Error("its control group is left")
	}
}

// anonymous returns the size of a process's own memory, in bytes: a clone's writes, without the
// memory that it shares with its snapshot.
func anonymous(t testing.TB, pid int) turnstone.Bytes {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	check(t, err)
	_, rest, _ := strings.Cut(string(b), "\nAnonymous:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	check(t, err)
	return turnstone.Bytes(kib << 10)
}

// TestRealBalloon checks that memory that a guest frees returns to the host: its memory balloon
// reports free pages.
//
//testrun:kvm
func TestRealBalloon(t *testing.T) {
	s, m := started(t)
	if !s.release.atLeast(1, 14) {
		t.Skipf("%s has no reports of free pages", s.version)
	}
	vm, client := substratetest.Clone(t, s, m, nil)
	pid := firecrackerOf(t, vm.(*machine))
	before := anonymous(t, pid)
	const size = 200 << 20
	shell(t, client, fmt.Sprintf("head -c %d /dev/urandom > /dev/shm/x", size))
	full := anonymous(t, pid)
	if full-before < size {
		t.Fatalf("the guest has written %s, and its machine has grown from %s to %s",
			turnstone.Bytes(size), before, full)
	}
	began := time.Now()
	shell(t, client, "rm /dev/shm/x")
	for until := time.Now().Add(limit); anonymous(t, pid) > before+
		size/4; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it keeps %s of %s", anonymous(t, pid), full)
		}
	}
	t.Logf("clone %s, full %s, %s after the file was removed %s", before, full,
		time.Since(began).Round(10*time.Millisecond), anonymous(t, pid))
	// the returned memory can be used again
	shell(t, client, "head -c 200M /dev/zero | tr '\\0' x > /dev/shm/y; ! tr -d x < /dev/shm/y | "+
		"grep -q .")
}

// TestRealEntropy checks that the guest has its own source of entropy: virtio-rng.
//
//testrun:kvm
func TestRealEntropy(t *testing.T) {
	s, m := started(t)
	_, client := substratetest.Clone(t, s, m, nil)
	out, exit := substratetest.Shell(t, client,
		"cat /sys/class/misc/hw_random/rng_current; head -c 32 /dev/hwrng | od -An -tx1 -w32; "+
			"head -c 32 /dev/hwrng | od -An -tx1 -w32")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if exit.ExitCode != 0 || len(lines) != 3 || !strings.HasPrefix(lines[0], "virtio_rng") ||
		len(strings.TrimSpace(lines[1])) != 32*3-1 || lines[1] == lines[2] {
		t.Errorf("it says %q, exit %d", out, exit.ExitCode)
	}
}

// TestRealRateLimit checks that a disk with a low rate limit is throttled, by Firecracker's own
// count.
//
//testrun:kvm
func TestRealRateLimit(t *testing.T) {
	s, m := started(t)
	s.limits = limits{bytes: 1 << 20}
	m.Shape.Memory = turnstone.MinMemory // no other test's snapshot is replaced
	snap, err := s.ensureSnapshot(within(t), m, s.identity(m))
	check(t, err)
	files, err := s.restoreFiles(m, snap)
	check(t, err)
	fc, err := s.launch(within(t), m.Shape, files)
	check(t, err)
	defer func() { _ = fc.Close() }()
	fc.origin = origin{id: s.identity(m)}
	path := filepath.Join(fc.cell.dir, outName, "metrics")
	check(t, os.WriteFile(path, nil, 0o600))
	check(t, os.Chown(path, int(fc.owner), -1))
	check(t, fc.api.send(within(t),
		request{"PUT", "/metrics", map[string]string{"metrics_path": outName + "/metrics"}},
		s.loadRequest()))
	check(t, fc.connect(within(t)))
	client, link, err := substratetest.Configure(within(t), fc, m, nil)
	check(t, err)
	defer func() { _, _, _ = fc.Close(), client.Close(), link.Close() }()
	shell(t, client, "head -c 4000000 /dev/urandom > /workspace/x; sync")
	check(t, fc.api.send(within(t), request{"PUT", "/actions", action{"FlushMetrics"}}))
	f, err := openWritten(fc.cell.outDir, "metrics", fc.owner, 16<<20)
	check(t, err)
	defer func() { _ = f.Close() }()
	var throttled, written int64 // since the start; each line adds to it
	for lines := json.NewDecoder(f); ; {
		var line map[string]json.RawMessage
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else {
			check(t, err)
		}
		var scratch struct {
			Throttled int64 `json:"rate_limiter_throttled_events"`
			Written   int64 `json:"write_bytes"`
		}
		check(t, json.Unmarshal(line["block_"+scratchName], &scratch))
		throttled, written = throttled+scratch.Throttled, written+scratch.Written
	}
	if throttled == 0 || written < 4_000_000 {
		t.Errorf("it has written %d bytes, and was throttled %d times", written, throttled)
	}
}

// TestRealKilled checks that a Firecracker that is killed is reported at once, as the end of its
// machine, and that nothing is left, also if that happens during a snapshot.
//
//testrun:kvm
func TestRealKilled(t *testing.T) {
	s, m := started(t)
	if err := s.Abilities().Live; err != nil {
		t.Skip(err)
	}
	vm, client := substratetest.Clone(t, s, m, nil)
	fc := vm.(*machine)
	cell, group := fc.cell.dir, fc.cgroup
	parent := t.TempDir()
	_ = client.Close()
	check(t, fc.Pause(within(t)))
	check(t, unix.Kill(firecrackerOf(t, fc), unix.SIGKILL))
	err := vm.(substrate.Snapshotter).Snapshot(within(t), filepath.Join(parent, "vm"))
	if turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("a snapshot of it: %s, %v", turnstone.KindOf(err), err)
	}
	select {
	case <-vm.Done():
	case <-time.After(limit):
		t.Fatal("its end is not told")
	}
	if err := vm.Err(); turnstone.KindOf(err) != turnstone.KindDead ||
		!strings.Contains(err.Error(), "firecracker ended") {
		t.Errorf("the machine's end is %v", err)
	}
	check(t, vm.Close())
	left, _ := os.ReadDir(parent)
	for _, path := range []string{cell, cell + ".lock", group} {
		if _, err := os.Stat(path); path != "" && err == nil {
			left = append(left, nil)
			t.Errorf("%s is left", path)
		}
	}
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func shell(t testing.TB, client *wire.Client, script string) {
	t.Helper()
	if out, exit := substratetest.Shell(t, client, script); exit.ExitCode != 0 {
		t.Fatalf("%s: %q, exit %d", script, out, exit.ExitCode)
	}
}

// initramfs writes an initramfs whose /init is the given program.
func initramfs(t testing.TB, program []byte) string {
	t.Helper()
	var b bytes.Buffer
	// newc, docs.kernel.org/driver-api/early-userspace/buffer-format.html
	entry := func(name string, mode int, data []byte) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", 1, mode, 0, 0,
			1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
		b.WriteString(name + "\x00")
		b.Write(make([]byte, (4-b.Len()%4)%4))
		b.Write(data)
		b.Write(make([]byte, (4-b.Len()%4)%4))
	}
	entry("init", 0o100755, program)
	entry("TRAILER!!!", 0, nil)
	path := filepath.Join(t.TempDir(), "init.cpio")
	check(t, os.WriteFile(path, b.Bytes(), 0o644))
	return path
}

// endless returns a program that loops forever: an ELF header, one segment, `jmp .`.
func endless() []byte {
	const base = 0x400000
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_EXEC),
		Machine: uint16(elf.EM_X86_64), Version: 1,
		Entry: base + 120, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base,
		Paddr: base, Filesz: 122, Memsz: 122, Align: 0x1000})
	put([]byte{0xeb, 0xfe})
	return b.Bytes()
}

// TestRealBadGuest checks that a guest that panics as it boots is reported in its own words, and
// that a guest that boots and never answers, or hangs at its entry, is reported as hanging. Nothing
// is left of either, and no snapshot is taken.
//
//testrun:kvm
func TestRealBadGuest(t *testing.T) {
	s, m := started(t)
	m.InitDigest = turnstone.DigestBytes([]byte("another"))
	m.Shape.Memory = turnstone.MinMemory
	m.Initramfs = initramfs(t, []byte("no program"))
	for what, start := range map[string]func(context.Context, substrate.Machine) (substrate.Sandbox,
		error){"boot": s.Boot, "restore": s.Restore} {
		vm, err := start(within(t), m)
		if err == nil {
			_ = vm.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "the guest kernel panicked: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Stat(s.home.Path("snapshots", s.identity(m).key())); err == nil {
		t.Error("a snapshot of it is there")
	}
	image := filepath.Join(t.TempDir(), "vmlinux")
	check(t, os.WriteFile(image, endless(), 0o644))
	for what, change := range map[string]func(m *substrate.Machine){
		"an agent that never answers": func(m *substrate.Machine) {
			m.Initramfs = initramfs(t,
				endless())
		},
		"a kernel that hangs at its entry": func(m *substrate.Machine) { m.Kernel = image },
	} {
		m := m
		change(&m)
		vm, err := s.boot(within(t), m)
		check(t, err)
		cell := vm.cell.dir
		err = s.failed(t.Context(), vm,
			vm.wait(within(t), console.Patience{Idle: time.Second, Work: 3 * time.Second,
				Limit: limit}))
		if turnstone.KindOf(err) != turnstone.KindDead || !errors.Is(err, console.ErrHangs) ||
			turnstone.HintOf(err) == "" || strings.Contains(err.Error(), "Vcpu") ||
			m.Kernel == image && !strings.Contains(err.Error(), "the console is empty") {
			t.Errorf("%s: %s, %v (%s)", what, turnstone.KindOf(err), err, turnstone.HintOf(err))
		}
		t.Logf("%s: %v", what, err)
		if _, err := os.Stat(cell); err == nil {
			t.Errorf("%s: its folder is left", what)
		}
	}
}
