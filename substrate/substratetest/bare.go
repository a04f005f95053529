package substratetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Bare is a substrate's program on the files of a snapshot, without a driver's additions: checks,
// locks, jails. The command bench compares drivers with it.
type Bare struct {
	Network wire.SandboxNetwork
	// Start starts a clone of the snapshot that turns start from, and returns its process.
	Start func(ctx context.Context) (substrate.Sandbox, int, error)
	// Write saves a suspended machine into the folder dir, and Load starts a clone from dir. Nil:
	// the program cannot fork.
	Write func(ctx context.Context, vm substrate.Sandbox, dir string) error
	Load  func(ctx context.Context, dir string) (substrate.Sandbox, int, error)
}

// bareClones is the number of clones for measuring a clone's memory.
const bareClones = 4

// Run runs a measurement: floor and fork, in microseconds until a clone has run a command; command,
// the command alone; or held, the private memory and the Pss of a clone, in bytes.
func (b Bare) Run(ctx context.Context, mode string) error {
	switch mode {
	case "floor", "command":
		return b.command(ctx, mode == "command")
	case "fork":
		return b.fork(ctx)
	case "held":
		return b.held(ctx)
	}
	return fmt.Errorf("unknown benchmark %q", mode)
}

func (b Bare) command(ctx context.Context, alone bool) error {
	began := time.Now()
	vm, _, err := b.Start(ctx)
	if err != nil {
		return err
	}
	defer vm.Close()
	client, link, err := Configure(ctx, vm, substrate.Machine{}, &b.Network)
	if err != nil {
		return err
	}
	defer func() { _, _, _ = vm.Close(), client.Close(), link.Close() }()
	if alone {
		began = time.Now()
	}
	err = runTrue(ctx, client)
	fmt.Println(time.Since(began).Microseconds())
	return err
}

func runTrue(ctx context.Context, client *wire.Client) error {
	end, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", "true"}},
		wire.Stdio{})
	if err == nil && end.Exit.ExitCode != 0 {
		err = fmt.Errorf("true ended with %d", end.Exit.ExitCode)
	}
	return err
}

// fork saves a running machine and starts a clone from it.
func (b Bare) fork(ctx context.Context) error {
	if b.Write == nil {
		return errors.New("this program forks nothing by itself")
	}
	dir, err := os.MkdirTemp("", "turn-bare-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	parent, _, err := b.Start(ctx)
	if err != nil {
		return err
	}
	defer parent.Close()
	port := wire.NewPort(parent.Agent(), true)
	client, err := dial(port)
	if err != nil {
		return err
	}
	entropy, id := make([]byte, 64), make([]byte, 16)
	_, _ = rand.Read(entropy)
	_, _ = rand.Read(id)
	if _, err := client.SandboxConfigure(ctx, &wire.SandboxConfigureParams{Entropy: entropy,
		Time: time.Now().Format(time.RFC3339Nano), Scratch: parent.Scratch(),
		Hostname: "parent", MachineID: hex.EncodeToString(id),
		Network: ownCard(parent, &b.Network)}); err != nil {
		return err
	}
	if err := runTrue(ctx, client); err != nil {
		return err
	}
	began := time.Now()
	marker := make([]byte, wire.MarkerSize)
	_, _ = rand.Read(marker)
	if err := port.Expect(marker); err != nil {
		return err
	}
	if _, err := client.SandboxSuspend(ctx,
		&wire.SandboxSuspendParams{Marker: marker}); err != nil {
		return err
	}
	if err := errors.Join(port.End(ctx), b.Write(ctx, parent, dir)); err != nil {
		return fmt.Errorf("written down: %w", err)
	}
	clone, _, err := b.Load(ctx, dir)
	if err != nil {
		return err
	}
	defer clone.Close()
	if client, err = dial(wire.NewPort(clone.Agent(), true)); err != nil {
		return err
	}
	_, _ = rand.Read(id)
	if _, err := client.SandboxRenew(ctx, &wire.SandboxRenewParams{Entropy: entropy,
		Time:     time.Now().Format(time.RFC3339Nano),
		Hostname: "clone", MachineID: hex.EncodeToString(id)}); err != nil {
		return errors.Join(err, clone.Err(), parent.Err())
	}
	err = runTrue(ctx, client)
	fmt.Println(time.Since(began).Microseconds())
	return err
}

func dial(port *wire.Port) (*wire.Client, error) {
	link, err := port.Link()
	if err != nil {
		return nil, err
	}
	stream, err := link.Open()
	if err != nil {
		return nil, err
	}
	return wire.NewClient(stream), nil
}

// held starts some clones, which stay until all have run a command.
func (b Bare) held(ctx context.Context) error {
	var pids []int
	for range bareClones {
		vm, pid, err := b.Start(ctx)
		if err != nil {
			return err
		}
		defer vm.Close()
		client, _, err := Configure(ctx, vm, substrate.Machine{}, &b.Network)
		if err != nil {
			return err
		}
		if err := runTrue(ctx, client); err != nil {
			return err
		}
		pids = append(pids, pid)
	}
	var private, pss []int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return err
		}
		var own, share int64
		for line := range strings.Lines(string(text)) {
			var name, unit string
			var kib int64
			if n, _ := fmt.Sscan(line, &name, &kib, &unit); n != 3 {
				continue
			}
			switch name {
			case "Private_Clean:", "Private_Dirty:":
				own += kib << 10
			case "Pss:":
				share = kib << 10
			}
		}
		private, pss = append(private, own), append(pss, share)
	}
	slices.Sort(private)
	slices.Sort(pss)
	fmt.Println(private[len(private)/2], pss[len(pss)/2])
	return nil
}
