package substratetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Guest is a machine with the host's side of its port, for tests that snapshot it
// as it runs.
type Guest struct {
	Machine substrate.Sandbox
	Client  *wire.Client // of the link of the moment
	port    *wire.Port
}

// Start restores a machine and configures it; the test ends it.
func Start(t *testing.T, s substrate.Substrate, m substrate.Machine, network *wire.SandboxNetwork) *Guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	vm, err := s.Restore(ctx, m)
	if err != nil {
		t.Fatalf("restore: %v (%s)", err, turnstone.HintOf(err))
	}
	g := connect(t, vm)
	entropy, name, id := fresh(vm)
	if _, err := g.Client.SandboxConfigure(ctx, &wire.SandboxConfigureParams{Entropy: entropy, Time: time.Now().Format(time.RFC3339Nano),
		Scratch: vm.Scratch(), Hostname: name, MachineID: id, Network: network}); err != nil {
		t.Fatalf("configure: %v (machine: %v)", err, vm.Err())
	}
	return g
}

func fresh(vm substrate.Sandbox) (entropy []byte, name, machineID string) {
	entropy, id := make([]byte, 64), make([]byte, 16)
	_, _ = rand.Read(entropy)
	_, _ = rand.Read(id)
	return entropy, strings.ReplaceAll(string(vm.ID()), "_", "-"), hex.EncodeToString(id)
}

// connect opens the first connection of a machine's next link.
func connect(t *testing.T, vm substrate.Sandbox) *Guest {
	t.Helper()
	g := &Guest{Machine: vm, port: wire.NewPort(vm.Agent(), true)}
	t.Cleanup(func() { _ = vm.Close(); _ = g.port.Close() })
	g.link(t)
	return g
}

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
	if _, err := g.Client.SandboxSuspend(ctx, &wire.SandboxSuspendParams{Marker: marker}); err != nil {
		t.Fatalf("suspend: %v", err)
	}
	if err := g.port.End(ctx); err != nil {
		t.Fatalf("the link's end: %v", err)
	}
}

// Renew makes the guest go on; as a machine of its own if own.
func (g *Guest) Renew(t *testing.T, own bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	g.link(t)
	entropy, name, id := fresh(g.Machine)
	p := &wire.SandboxRenewParams{Entropy: entropy, Time: time.Now().Format(time.RFC3339Nano)}
	if own {
		p.Hostname, p.MachineID = name, id
	}
	res, err := g.Client.SandboxRenew(ctx, p)
	if err != nil {
		t.Fatalf("renew: %v (machine: %v)", err, g.Machine.Err())
	}
	if !res.Reseeded {
		t.Error("the reseed was not confirmed")
	}
}

// Snapshot writes the guest down in a new folder and lets it go on.
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
	g := connect2(t, vm)
	g.Renew(t, true)
	return g
}

func connect2(t *testing.T, vm substrate.Sandbox) *Guest {
	g := &Guest{Machine: vm, port: wire.NewPort(vm.Agent(), true)}
	t.Cleanup(func() { _ = vm.Close(); _ = g.port.Close() })
	return g
}

// count reads the number that the guest's loop has come to.
func (g *Guest) count(t *testing.T) int {
	t.Helper()
	out, _ := Shell(t, g.Client, "cat /run/count")
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("the count is %q", out)
	}
	return n
}

func testFork(t *testing.T, s substrate.Substrate, c Config) {
	if _, ok := s.(substrate.Resumer); !ok {
		t.Skip("this substrate does not clone what runs")
	}
	_ = os.Remove
	g := Start(t, s, c.Machine, &c.Network)
	if _, err := g.Client.ProcessStart(t.Context(), &wire.ProcessStartParams{ProcessID: "loop", Detach: true,
		Argv: []string{"bash", "-c", "i=0; while :; do i=$((i+1)); echo $i > /run/count.new; mv /run/count.new /run/count; sleep 0.05; done"}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	dir := g.Snapshot(t)
	a := g.count(t)
	one := Resume(t, s, c.Machine, dir)
	b := one.count(t)
	time.Sleep(time.Second)
	t.Log(a, b, one.count(t), g.count(t))
}
