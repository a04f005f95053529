// Package substratetest is the conformance suite of substrates: the guarantees of every sandbox on
// any substrate. A driver's test calls Run with real machines.
package substratetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Config contains further inputs of the suite.
type Config struct {
	// Machine has the template base, a single CPU and the network on. The suite changes its shape.
	Machine substrate.Machine
	// Network configures a sandbox of Machine.
	Network wire.SandboxNetwork
	// MakeHome creates an empty home disk; nil: the substrate has none.
	MakeHome func(ctx context.Context, path string, size turnstone.Bytes) error
	// Elsewhere returns the substrate in a separate, empty state directory, like on another host of
	// the same kind. A substrate that keeps machines needs it.
	Elsewhere func(t *testing.T) substrate.Substrate
	// End ends a machine from outside, as its own fault would; nil: its kernel is made to panic. A
	// kernel that cannot panic from inside needs it.
	End func(vm substrate.Sandbox) error
	// HostOnly leaves out what the guest alone decides: it is the same for every user and accelerator of a
	// host that has run the whole suite.
	HostOnly bool
}

// limit bounds each conversation with a guest; they take milliseconds, and seconds on a busy
// machine without KVM.
const limit = 3 * time.Minute

// A point is a guarantee that the suite tests.
type point struct {
	name  string
	guest bool // the guest alone decides it, whoever runs the machine
	test  func(t *testing.T, s substrate.Substrate, c Config)
}

func points() []point {
	return []point{
		{"names itself", true, testNames},
		{"boots without a snapshot", false, testBoot},
		{"runs commands", false, testCommands},
		{"signals whole trees", true, testSignals},
		{"terminals and users", true, testTerminal},
		{"files", true, testFiles},
		{"steps have records", true, testRecords},
		{"clones are not twins", true, testTwins},
		{"clones share nothing they write", true, testApart},
		{"template is read-only", true, testTemplate},
		{"network on", false, testNetworkOn},
		{"another shape", false, testShape},
		{"process limit", true, testProcesses},
		{"a dead guest is told", true, testPanic},
		{"close", false, testClose},
		{"pause", false, testPause},
		{"layers", false, testLayers},
		{"damaged layers", true, testDamagedLayers},
		{"a folder of the disk", true, testShownDisk},
		{"images are mounted while it runs", false, testMount},
		{"freeze", false, testFreeze},
		{"home", false, testHome},
		{"stands still among execs", true, testExecs},
		{"live fork", false, testFork},
		{"live fork of a paused machine", false, testPausedSnapshot},
		{"damaged live fork", true, testDamagedFork},
		{"machines are kept", false, testKeep},
		{"kept machines move", false, testMove},
		{"cancelled restore", false, testCancel},
	}
}

// Run runs the suite on s.
func Run(t *testing.T, s substrate.Substrate, c Config) {
	for _, p := range points() {
		if !p.guest || !c.HostOnly {
			t.Run(p.name, func(t *testing.T) { p.test(t, s, c) })
		}
	}
}

func testNames(t *testing.T, s substrate.Substrate, _ Config) {
	if s.Name() == "" || s.Isolation() == "" {
		t.Errorf("name %q, isolation %q", s.Name(), s.Isolation())
	}
}

// Clone restores a machine and configures it as the executor does; the test ends it. It is exported
// for drivers' own tests.
func Clone(t *testing.T, s substrate.Substrate, m substrate.Machine, network *wire.SandboxNetwork) (
	substrate.Sandbox, *wire.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	vm, err := s.Restore(ctx, m)
	if err != nil {
		t.Fatalf("restore: %v (%s)", err, turnstone.HintOf(err))
	}
	return vm, configure(t, vm, m, network)
}

func configure(t *testing.T, vm substrate.Sandbox, m substrate.Machine, network *wire.SandboxNetwork,
	change ...func(*wire.SandboxConfigureParams)) *wire.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	t.Cleanup(func() { _ = vm.Close() })
	client, link, err := Configure(ctx, vm, m, network, change...)
	if err != nil {
		t.Fatalf("configure: %v (machine: %v)", err, vm.Err())
	}
	t.Cleanup(func() { _ = vm.Close(); _ = client.Close(); _ = link.Close() })
	return client
}

// HomePath is the mount point that Configure uses for a machine's home disk.
const HomePath = "/home/agent"

// Configure gives a clone of m its own identity, as the executor does, with changes of the parameters. The caller
// closes the result.
func Configure(ctx context.Context, vm substrate.Sandbox, m substrate.Machine, network *wire.SandboxNetwork,
	change ...func(*wire.SandboxConfigureParams)) (*wire.Client, *wire.Link, error) {
	link, err := wire.NewLink(vm.Agent(), true)
	if err != nil {
		return nil, nil, err
	}
	stream, err := link.Open()
	if err != nil {
		return nil, nil, err
	}
	client := wire.NewClient(stream)
	entropy, id := make([]byte, 64), make([]byte, 16)
	_, _ = rand.Read(entropy)
	_, _ = rand.Read(id)
	p := wire.SandboxConfigureParams{Entropy: entropy, Time: time.Now().Format(time.RFC3339Nano),
		Scratch:  vm.Scratch(),
		Hostname: strings.ReplaceAll(string(vm.ID()), "_", "-"), MachineID: hex.EncodeToString(id),
		Network: ownCard(vm, network)}
	for i := range m.Layers {
		p.Layers = append(p.Layers, substrate.LayerSerial(i))
	}
	if d := m.Determinism; d != nil {
		seed, id := d.Derive("entropy"), d.Derive("machine id")
		p.Entropy, p.MachineID = seed[:], hex.EncodeToString(id[:16])
		p.Time, p.Hostname = d.Clock.Format(time.RFC3339Nano), "turn"
		p.Deterministic = true
	}
	if m.Home != "" {
		p.Home = &wire.SandboxHomeDisk{Serial: substrate.HomeSerial, Path: HomePath}
	}
	for _, f := range change {
		f(&p)
	}
	res, err := client.SandboxConfigure(ctx, &p)
	if err == nil && !res.Reseeded {
		err = errors.New("the clone did not confirm its reseed")
	}
	if err == nil {
		err = attach(ctx, vm, client, network)
	}
	if err != nil {
		_ = vm.Close()
		_ = client.Close()
		_ = link.Close()
		return nil, nil, err
	}
	return client, link, nil
}

// ownCard returns network if vm has its own card, and nil if the agent creates the card.
func ownCard(vm substrate.Sandbox, network *wire.SandboxNetwork) *wire.SandboxNetwork {
	if _, own := vm.(substrate.Networker); own {
		return network
	}
	return nil
}

// attach gives a sandbox without its own card a card whose cable ends nowhere.
func attach(ctx context.Context, vm substrate.Sandbox, client *wire.Client,
	network *wire.SandboxNetwork) error {
	if network == nil || ownCard(vm, network) != nil {
		return nil
	}
	frames, err := client.NetworkStream(ctx, wire.SandboxNetworkParams{MAC: "52:54:00:12:34:56",
		Network: *network})
	if err != nil {
		return err
	}
	go func() { // ends with the sandbox, or its link
		_, _ = io.Copy(io.Discard, frames)
		_ = frames.Close()
	}()
	return nil
}

// interfaces lists the network's interfaces; not every kernel has /sys/class/net.
const interfaces = `awk -F: 'NR > 2 {gsub(/ /, "", $1); print $1}' /proc/net/dev`

// Shell runs script with bash in the sandbox and returns its output and exit code.
func Shell(t testing.TB, c *wire.Client, script string) (string, wire.ProcessExit) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, errOut bytes.Buffer
	res, err := c.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", script}},
		wire.Stdio{Out: &out, Err: &errOut})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out.String() + errOut.String(), res.Exit
}

func want(t *testing.T, c *wire.Client, script, output string) {
	t.Helper()
	if got, exit := Shell(t, c, script); got != output || exit.ExitCode != 0 {
		t.Errorf("%s: got %q, exit %d; want %q", script, got, exit.ExitCode, output)
	}
}

func (c Config) clone(t *testing.T, s substrate.Substrate) (substrate.Sandbox, *wire.Client) {
	t.Helper()
	return Clone(t, s, c.Machine, &c.Network)
}

func testBoot(t *testing.T, s substrate.Substrate, c Config) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	vm, err := s.Boot(ctx, c.Machine)
	if err != nil {
		t.Fatal(err)
	}
	want(t, configure(t, vm, c.Machine, &c.Network), "echo up", "up\n")
}

func testCommands(t *testing.T, s substrate.Substrate, c Config) {
	began := time.Now()
	_, client := c.clone(t, s)
	late := time.Since(began) // at most, of the host's time on its way to the guest's clock
	want(t, client, "echo out; echo err >&2", "out\nerr\n")
	want(t, client, "id -u; pwd", "0\n/workspace\n")
	want(t, client, `printf '\0\377' | od -An -tx1`, " 00 ff\n")
	for script, code := range map[string]int64{"exit 7": 7, "kill -9 $$": 137, "kill -TERM $$": 143,
		"no-such-program-xyz": 127} {
		if _, exit := Shell(t, client, script); exit.ExitCode != code {
			t.Errorf("%s: exit %d, want %d", script, exit.ExitCode, code)
		}
	}
	before := time.Now()
	now, _ := Shell(t, client, "date +%s")
	sec, err := strconv.ParseInt(strings.TrimSpace(now), 10, 64)
	clock := time.Unix(sec, 0)
	if after := time.Now(); err != nil || clock.Before(before.Add(-late-5*time.Second)) || clock.After(after.Add(5*time.Second)) {
		t.Errorf("the guest's clock says %q, the host's %s to %s; its time was at most %s on its way", now, before, after, late)
	}
}

// testTwins compares everything that a snapshot would make equal.
func testTwins(t *testing.T, s substrate.Substrate, c Config) {
	const n = 3
	const script = `hostname; cat /etc/machine-id; od -An -tx1 -N32 /dev/urandom; od -An -tx1 ` +
		`-N32 /dev/random; cat /proc/sys/kernel/random/uuid; cat ` +
		`/proc/sys/kernel/random/boot_id; mktemp -u`
	names := []string{"hostname", "machine-id", "urandom 1", "urandom 2", "random 1", "random 2",
		"uuid", "boot id", "mktemp", "key of the channel"}
	seen := map[string]string{}
	for i := range n {
		_, client := c.clone(t, s)
		out, _ := Shell(t, client, script)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		lines = append(lines, channelKey(t, client))
		if len(lines) != len(names) {
			t.Fatalf("got %d lines: %q", len(lines), out)
		}
		for j, line := range lines {
			if other, ok := seen[line]; ok {
				t.Errorf("clone %d has the %s %q of %s", i, names[j], line, other)
			}
			seen[line] = fmt.Sprintf("clone %d (%s)", i, names[j])
		}
	}
}

// channelKey returns the agent's key of encrypted channels.
func channelKey(t *testing.T, c *wire.Client) string {
	t.Helper()
	res, err := c.SandboxSeal(t.Context(), &wire.SandboxSealParams{})
	check(t, err)
	return res.Key
}

func testApart(t *testing.T, s substrate.Substrate, c Config) {
	_, one := c.clone(t, s)
	_, two := c.clone(t, s)
	want(t, one, "echo secret > /etc/only-one; echo x > /run/only-one; "+
		"dd if=/dev/zero of=/workspace/big bs=1M count=8 status=none; sync; ls /workspace", "big\n")
	want(t, two, "ls /workspace; ls /etc/only-one /run/only-one 2>/dev/null; echo end", "end\n")
	_, three := c.clone(t, s)
	want(t, three, "ls /workspace; ls /etc/only-one /run/only-one 2>/dev/null; echo end", "end\n")
}

// testTemplate writes to the root disk as only a hostile guest would.
func testTemplate(t *testing.T, s substrate.Substrate, c Config) {
	before, err := digestFile(c.Machine.Root)
	if err != nil {
		t.Fatal(err)
	}
	_, client := c.clone(t, s)
	out, _ := Shell(t, client,
		`for d in /sys/block/*; do n=/dev/${d##*/}; [ -b $n ] || continue; case $(cat `+
			`$d/serial 2>/dev/null) in root) dd if=/dev/zero of=$n bs=4096 count=1 conv=fsync `+
			`status=none && echo wrote;; esac; done; echo hello > /usr/bin/true && echo overlay`)
	if strings.Contains(out, "wrote") || !strings.Contains(out, "overlay") {
		t.Errorf("writing to the root disk: %q", out)
	}
	if after, err := digestFile(c.Machine.Root); err != nil || after != before {
		t.Errorf("the root image changed from %s to %s (%v)", before, after, err)
	}
}

func testNetworkOn(t *testing.T, s substrate.Substrate, c Config) {
	_, client := c.clone(t, s)
	want(t, client, interfaces+` | grep -v '^lo$' | wc -l; grep -c . /etc/resolv.conf`, "1\n1\n")
	gw := c.Network.Gateway
	if _, exit := Shell(t, client,
		"grep -q ^nameserver /etc/resolv.conf && ip route get 192.0.2.1 | grep -q 'via "+gw+
			"'"); exit.ExitCode != 0 {
		out, _ := Shell(t, client, "cat /etc/resolv.conf; ip addr; ip route")
		t.Errorf("no default route by %s:\n%s", gw, out)
	}
}

// testShape has all limits in one machine: each other shape has a snapshot of its own, which takes a boot.
func testShape(t *testing.T, s substrate.Substrate, c Config) {
	m := c.Machine
	m.Shape = turnstone.Shape{CPUs: 2, Memory: turnstone.MinMemory, Disk: 64 << 20}
	_, client := Clone(t, s, m, nil)
	t.Run("network off", func(t *testing.T) { testNetworkOff(t, client) })
	t.Run("cpus", func(t *testing.T) {
		if out, _ := Shell(t, client, "cat /sys/devices/system/cpu/kernel_max"); out == "0\n" {
			t.Skip("the guest's kernel is built for one CPU (CONFIG_NR_CPUS)")
		}
		want(t, client, "nproc", "2\n")
		_, other := c.clone(t, s)
		want(t, other, "nproc", fmt.Sprintln(c.Machine.Shape.CPUs))
	})
	t.Run("disk limit", func(t *testing.T) { testDisk(t, client, m.Shape.Disk) })
	t.Run("memory limit", func(t *testing.T) { testMemory(t, client, m.Shape.Memory) })
}

func testNetworkOff(t *testing.T, client *wire.Client) {
	t.Helper()
	want(t, client, interfaces+
		"; grep -vc ^lo /proc/net/route; ip -o link show lo | grep -c '[<,]UP[,>]'", "lo\n1\n1\n")
	if out, exit := Shell(t, client, "exec 3<>/dev/tcp/192.0.2.1/80"); exit.ExitCode == 0 ||
		!strings.Contains(out, "unreachable") {
		t.Errorf("connecting with the network off: exit %d, %q", exit.ExitCode, out)
	}
}

func testMemory(t *testing.T, client *wire.Client, memory turnstone.Bytes) {
	t.Helper()
	// The program keeps its memory: where the kernel only counts it, the agent looks now and then.
	out, exit := Shell(t, client,
		`perl -e 'push @x, "x" x (1_000_000 + $_) for 1..320; print scalar @x; sleep 60'`)
	if exit.ExitCode == 0 || !exit.OOMKilled {
		t.Errorf("320 MB in %s: %q, %+v", memory, out, exit)
	}
	want(t, client, "echo alive", "alive\n")
}

func testDisk(t *testing.T, client *wire.Client, disk turnstone.Bytes) {
	t.Helper()
	out, exit := Shell(t, client, "head -c 100000000 /dev/zero > /workspace/big")
	if exit.ExitCode == 0 || !strings.Contains(out, "No space left") || !exit.DiskFull {
		t.Errorf("100 MB on %s: %q, %+v", disk, out, exit)
	}
	want(t, client, "rm /workspace/big; echo freed > /workspace/small; cat /workspace/small",
		"freed\n")
}

// testProcesses leaves a fork bomb in the background, and runs a command beside it.
func testProcesses(t *testing.T, s substrate.Substrate, c Config) {
	_, client := c.clone(t, s)
	Shell(t, client, ":(){ :|:& };:")
	want(t, client, "echo alive", "alive\n")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	st, err := client.SandboxGetStats(ctx)
	if err != nil || st.Processes > 5000 {
		t.Errorf("beside the bomb: %+v, %v", st, err)
	}
}

func testPanic(t *testing.T, s substrate.Substrate, c Config) {
	vm, client := c.clone(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	script := "echo c > /proc/sysrq-trigger"
	if c.End != nil {
		script = "sleep 100"
		go func() {
			time.Sleep(300 * time.Millisecond) //wait: any moment is right: the script runs by then, or is about to
			if err := c.End(vm); err != nil {
				t.Error(err)
			}
		}()
	}
	var out bytes.Buffer
	_, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", script}},
		wire.Stdio{Out: &out, Err: io.Discard})
	if turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("the call ended with %v, want kind %s", err, turnstone.KindDead)
	}
	select {
	case <-vm.Done():
	case <-ctx.Done():
		t.Fatal("the machine goes on after its kernel's panic")
	}
	if turnstone.KindOf(vm.Err()) != turnstone.KindDead {
		t.Errorf("the machine's error is %v, want kind %s", vm.Err(), turnstone.KindDead)
	}
}

func testClose(t *testing.T, s substrate.Substrate, c Config) {
	vm, client := c.clone(t, s)
	if vm.Err() != nil {
		t.Errorf("a running machine has the error %v", vm.Err())
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
	select {
	case <-vm.Done():
	default:
		t.Error("not done after Close")
	}
	if vm.Err() != nil {
		t.Errorf("a closed machine has the error %v", vm.Err())
	}
	if _, err := client.SandboxGetStats(t.Context()); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("a call to a closed machine: %v", err)
	}
}

func testPause(t *testing.T, s substrate.Substrate, c Config) {
	vm, client := c.clone(t, s)
	p, ok := vm.(substrate.Pauser)
	if !ok {
		t.Skip("this substrate cannot pause")
	}
	standsStill(t, s)
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second) //wait: it is meant to expire
	defer cancel()
	if _, err := client.SandboxGetStats(short); err == nil {
		t.Error("a paused machine answers")
	}
	if err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, client, "echo on", "on\n")
}

func testCancel(t *testing.T, s substrate.Substrate, c Config) {
	for _, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond,
		30 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		vm, err := s.Restore(ctx, c.Machine)
		cancel()
		if err == nil {
			_ = vm.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled after %s: %v", after, err)
		}
	}
}
