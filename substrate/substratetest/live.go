package substratetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Guest is a machine with the host's side of its port, for tests that snapshot the running
// machine.
type Guest struct {
	Machine substrate.Sandbox
	Client  *wire.Client // client of the current link
	port    *wire.Port
	network *wire.SandboxNetwork
	// late is how long the host's time was on its way to the guest's clock, at most: a busy machine takes seconds.
	late time.Duration
}

// Start restores a machine and configures it; the test ends it.
func Start(t *testing.T, s substrate.Substrate, m substrate.Machine,
	network *wire.SandboxNetwork) *Guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	vm, err := s.Restore(ctx, m)
	if err != nil {
		t.Fatalf("restore: %v (%s)", err, turnstone.HintOf(err))
	}
	g := hold(t, vm)
	g.network = network
	g.link(t)
	entropy, name, id := fresh(vm)
	sent := time.Now()
	if _, err := g.Client.SandboxConfigure(ctx, &wire.SandboxConfigureParams{Entropy: entropy,
		Time:    sent.Format(time.RFC3339Nano),
		Scratch: vm.Scratch(), Hostname: name, MachineID: id,
		Network: ownCard(vm, network)}); err != nil {
		t.Fatalf("configure: %v (machine: %v)", err, vm.Err())
	}
	g.late = time.Since(sent)
	if err := attach(ctx, vm, g.Client, network); err != nil {
		t.Fatalf("network: %v (machine: %v)", err, vm.Err())
	}
	return g
}

func fresh(vm substrate.Sandbox) (entropy []byte, name, machineID string) {
	entropy, id := make([]byte, 64), make([]byte, 16)
	_, _ = rand.Read(entropy)
	_, _ = rand.Read(id)
	return entropy, strings.ReplaceAll(string(vm.ID()), "_", "-"), hex.EncodeToString(id)
}

// hold ends a machine with the test.
func hold(t *testing.T, vm substrate.Sandbox) *Guest {
	g := &Guest{Machine: vm, port: wire.NewPort(vm.Agent(), true)}
	t.Cleanup(func() { _ = vm.Close(); _ = g.port.Close() })
	return g
}

// link starts the next link and its first connection.
func (g *Guest) link(t *testing.T) {
	t.Helper()
	link, err := g.port.Link()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := link.Open()
	if err != nil {
		t.Fatal(err)
	}
	g.Client = wire.NewClient(stream)
}

// Suspend makes the guest ready for a snapshot.
func (g *Guest) Suspend(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	marker := make([]byte, wire.MarkerSize)
	_, _ = rand.Read(marker)
	if err := g.port.Expect(marker); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Client.SandboxSuspend(ctx,
		&wire.SandboxSuspendParams{Marker: marker}); err != nil {
		t.Fatalf("suspend: %v", err)
	}
	if err := g.port.End(ctx); err != nil {
		t.Fatalf("the link's end: %v", err)
	}
}

// Renew lets the guest continue; with its own identity if own.
func (g *Guest) Renew(t *testing.T, own bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	g.link(t)
	entropy, name, id := fresh(g.Machine)
	sent := time.Now()
	p := &wire.SandboxRenewParams{Entropy: entropy, Time: sent.Format(time.RFC3339Nano)}
	if own {
		p.Hostname, p.MachineID = name, id
	}
	res, err := g.Client.SandboxRenew(ctx, p)
	if err != nil {
		t.Fatalf("renew: %v (machine: %v)", err, g.Machine.Err())
	}
	g.late = time.Since(sent)
	if !res.Reseeded {
		t.Error("the reseed was not confirmed")
	}
	if err := attach(ctx, g.Machine, g.Client, g.network); err != nil {
		t.Errorf("network: %v (machine: %v)", err, g.Machine.Err())
	}
}

// Snapshot saves the guest in a new folder and lets it continue.
func (g *Guest) Snapshot(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "vm")
	g.Suspend(t)
	began := time.Now()
	if err := g.Machine.(substrate.Snapshotter).Snapshot(t.Context(), dir); err != nil {
		t.Fatalf("snapshot: %v (%s)", err, turnstone.HintOf(err))
	}
	t.Logf("snapshot taken in %s", time.Since(began))
	g.Renew(t, false)
	return dir
}

// Resume starts a clone from a snapshot.
func Resume(t *testing.T, s substrate.Substrate, m substrate.Machine, dir string) *Guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	vm, err := s.(substrate.Resumer).RestoreFrom(ctx, m, dir)
	if err != nil {
		t.Fatalf("restore from %s: %v (%s)", dir, err, turnstone.HintOf(err))
	}
	g := hold(t, vm)
	g.Renew(t, true)
	return g
}

// count reads the current number of the guest's loop.
func (g *Guest) count(t *testing.T) int {
	t.Helper()
	out, _ := Shell(t, g.Client, "cat /run/count")
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("the count is %q", out)
	}
	return n
}

// counter starts a loop that counts in /run/count. Most of the time the number is only in memory,
// and its file is on no disk. The loop starts no process, so that several machines without KVM do not use
// all processors of the host; a write of as many bytes as before is never seen in part.
func (g *Guest) counter(t *testing.T) {
	t.Helper()
	if _, err := g.Client.ProcessStart(t.Context(), &wire.ProcessStartParams{ProcessID: "counter",
		KillOnDisconnect: true,
		Argv: []string{"bash", "-c",
			"mkfifo /run/never; i=0; while :; do i=$((i+1)); printf %08d $i 1<>/run/count; " +
				"read -rt 0.1 <>/run/never; done"}}); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if out, _ := Shell(t, g.Client, "cat /run/count 2>/dev/null"); out != "" {
			return
		}
		if time.Now().After(until) {
			t.Fatal("it does not count")
		}
	}
}

// continues checks that the loop continues from at least the given number.
func (g *Guest) continues(t *testing.T, from int) {
	t.Helper()
	first := g.count(t)
	if first < from {
		t.Errorf("it has counted to %d, it was at %d before", first, from)
	}
	for until := time.Now().Add(limit); g.count(t) == first; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it stays at %d", first)
		}
	}
}

func resumer(t *testing.T, s substrate.Substrate) substrate.Resumer {
	t.Helper()
	standsStill(t, s)
	r, ok := s.(substrate.Resumer)
	if !ok {
		t.Skip("this substrate does not clone what runs")
	}
	return r
}

// standsStill skips operations that a substrate reports as restricted.
func standsStill(t *testing.T, s substrate.Substrate) {
	t.Helper()
	if err := substrate.AbilitiesOf(s).Live; err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
}

// testExecs pauses a machine whose processes call exec continuously. Some kernels then fail to stop
// a process that was to stop.
func testExecs(t *testing.T, s substrate.Substrate, c Config) {
	standsStill(t, s)
	g := Start(t, s, c.Machine, &c.Network)
	want(t, g.Client, "echo 'exec bash /run/execs' > /run/execs", "")
	for i := range 4 {
		if _, err := g.Client.ProcessStart(t.Context(),
			&wire.ProcessStartParams{ProcessID: fmt.Sprintf("execs%d", i),
				Argv: []string{"bash", "/run/execs"}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		g.Suspend(t)
		g.Renew(t, false)
	}
}

// testFork clones a running machine, and then a clone of it.
func testFork(t *testing.T, s substrate.Substrate, c Config) {
	resumer(t, s)
	g := Start(t, s, c.Machine, &c.Network)
	g.counter(t)
	want(t, g.Client, "echo disk > /workspace/file; mkdir /dev/shm/d; "+
		"echo memory > /dev/shm/d/file; echo 192.0.2.9 mine >> /etc/hosts", "")
	at := g.count(t)
	_ = channelKey(t, g.Client) // made before the snapshot, which must not have it
	dir := g.Snapshot(t)
	// although its connection has ended, and the process should end with the connection
	g.continues(t, at)
	one := Resume(t, s, c.Machine, dir)
	one.continues(t, at)
	want(t, one.Client, "cat /workspace/file /dev/shm/d/file; grep -c mine /etc/hosts",
		"disk\nmemory\n1\n")
	want(t, one.Client, "echo more >> /workspace/file; sync", "")
	if _, err := one.Client.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: "counter"}); err != nil {
		t.Errorf("the clone's agent does not know its process: %v", err)
	}
	_ = channelKey(t, one.Client)
	second := one.Snapshot(t)
	forks := []*Guest{g, one}
	for range 3 {
		f := Resume(t, s, c.Machine, second)
		f.continues(t, at)
		want(t, f.Client, "cat /workspace/file", "disk\nmore\n")
		forks = append(forks, f)
	}
	want(t, g.Client, "cat /workspace/file", "disk\n")
	differ(t, forks)
}

// differ checks that all values differ between machines that copied memory would make equal.
func differ(t *testing.T, forks []*Guest) {
	t.Helper()
	const script = `hostname; cat /etc/hostname; grep 127.0.1.1 /etc/hosts; cat ` +
		`/etc/machine-id /proc/sys/kernel/random/boot_id; od -An -tx1 -w32 -N32 /dev/urandom; ` +
		`cat /proc/sys/kernel/random/uuid; mktemp -u; date +%s`
	names := []string{"host name", "/etc/hostname", "/etc/hosts", "machine-id", "boot id", "random",
		"uuid", "mktemp", "clock"}
	seen := map[string]string{}
	for i, f := range forks {
		before := time.Now().Unix()
		out, _ := Shell(t, f.Client, script)
		after := time.Now().Unix()
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != len(names) {
			t.Fatalf("got %d lines: %q", len(lines), out)
		}
		clock, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
		if err != nil || clock < before-1-int64(f.late.Seconds()+1) || clock > after+1 {
			t.Errorf("the clock of fork %d says %s, the host's %d to %d; its time was at most %s on its way", i,
				lines[len(lines)-1], before, after, f.late)
		}
		if name := strings.ReplaceAll(string(f.Machine.ID()), "_", "-"); lines[0] != name ||
			lines[1] != name || lines[2] != "127.0.1.1\t"+name {
			t.Errorf("fork %s is called %q", name, lines[:3])
		}
		lines[len(lines)-1] = channelKey(t, f.Client)
		names[len(lines)-1] = "key of the channel"
		for j, line := range lines[3:] {
			if other, ok := seen[line]; ok {
				t.Errorf("fork %d has the %s %q of %s", i, names[3+j], line, other)
			}
			seen[line] = fmt.Sprintf("fork %d", i)
		}
	}
}

// testPausedSnapshot saves a paused machine, which stays paused.
func testPausedSnapshot(t *testing.T, s substrate.Substrate, c Config) {
	resumer(t, s)
	g := Start(t, s, c.Machine, &c.Network)
	g.counter(t)
	at := g.count(t)
	g.Suspend(t)
	p := g.Machine.(substrate.Pauser)
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "vm")
	for _, dir := range []string{dir, dir + "2"} {
		if err := g.Machine.(substrate.Snapshotter).Snapshot(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	_ = g.Machine.Close()
	// the original is gone, and the clones do not need it
	for _, dir := range []string{dir, dir + "2"} {
		f := Resume(t, s, c.Machine, dir)
		f.continues(t, at)
	}
}

// testDamagedFork changes each file of a snapshot, and combines it with another machine.
func testDamagedFork(t *testing.T, s substrate.Substrate, c Config) {
	r := resumer(t, s)
	g := Start(t, s, c.Machine, &c.Network)
	dir := g.Snapshot(t)
	refused := func(what string, m substrate.Machine, kinds ...turnstone.Kind) {
		t.Helper()
		vm, err := r.RestoreFrom(t.Context(), m, dir)
		if err == nil {
			_ = vm.Close()
		}
		if !slices.Contains(kinds, turnstone.KindOf(err)) || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", what, err, turnstone.KindOf(err))
		}
	}
	other := c.Machine
	other.Shape.Memory *= 2
	refused("another shape", other, turnstone.KindUnavailable)
	other = c.Machine
	other.RootDigest = turnstone.DigestBytes(nil)
	refused("another template", other, turnstone.KindUnavailable)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 3 {
		t.Fatalf("%d files: %v", len(entries), err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		flip(t, path)
		refused(e.Name()+" changed", c.Machine, turnstone.KindIntegrity, turnstone.KindUnavailable)
		flip(t, path)
		if err := errors.Join(os.Chmod(path, 0o644), os.Truncate(path, 1)); err != nil {
			t.Fatal(err)
		}
		refused(e.Name()+" cut off", c.Machine, turnstone.KindIntegrity)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		refused(e.Name()+" missing", c.Machine, turnstone.KindIntegrity)
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
}

// flip changes a bit of each of 16 bytes in the middle of a file, which may be read-only. A
// single changed bit of compressed data can stand for the same content.
func flip(t *testing.T, path string) {
	t.Helper()
	before, err := os.Stat(path)
	if err == nil {
		err = os.Chmod(path, before.Mode()|0o200)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(path, before.Mode()) }()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, min(16, st.Size()))
	at := (st.Size() - int64(len(b))) / 2
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 1
	}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// keeper skips substrates that keep no machines.
func keeper(t *testing.T, s substrate.Substrate) substrate.Keeper {
	t.Helper()
	k, ok := s.(substrate.Keeper)
	if !ok {
		t.Skip("this substrate keeps no machines")
	}
	standsStill(t, s)
	if err := substrate.AbilitiesOf(s).Keep; err != nil {
		t.Skip(err)
	}
	return k
}

// testKeep packs a running machine, and resumes from the packed files.
func testKeep(t *testing.T, s substrate.Substrate, c Config) {
	k := keeper(t, s)
	g := Start(t, s, c.Machine, &c.Network)
	g.counter(t)
	want(t, g.Client, "head -c 3000000 /dev/urandom > /dev/shm/random; "+
		"cp /dev/shm/random /workspace; sync", "")
	at := g.count(t)
	tmp := t.TempDir()
	packed, again := filepath.Join(tmp, "packed"), filepath.Join(tmp, "again")
	p, err := k.Pack(t.Context(), c.Machine, g.Snapshot(t), packed)
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, name := range p.Files {
		st, err := os.Stat(filepath.Join(packed, name))
		if err != nil {
			t.Fatal(err)
		}
		size += st.Size()
		t.Logf("%s: %s", name, turnstone.Bytes(st.Size()))
	}
	if size < 3_000_000 || size > 200<<20 { // the same data may be stored once
		t.Errorf("what is kept has %s", turnstone.Bytes(size))
	}
	_ = g.Machine.Close()
	if err := k.Unpack(t.Context(), c.Machine, substrate.PackedDir(packed), again); err != nil {
		t.Fatal(err)
	}
	f := Resume(t, s, c.Machine, again)
	f.continues(t, at)
	want(t, f.Client, "cmp /dev/shm/random /workspace/random", "")
	for _, name := range p.Files {
		flip(t, filepath.Join(packed, name))
		dir := filepath.Join(tmp, "damaged")
		if err := k.Unpack(t.Context(), c.Machine, substrate.PackedDir(packed),
			dir); turnstone.KindOf(err) != turnstone.KindIntegrity &&
			turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%s changed: %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s changed: a folder is left", name)
		}
		flip(t, filepath.Join(packed, name))
	}
}
