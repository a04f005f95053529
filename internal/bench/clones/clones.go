// Package clones starts clones of a snapshot as a turn does, without a turn around them.
package clones

import (
	"context"
	"errors"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// Open opens the substrate called name, and returns it with a machine of a template. The error is the reason why the
// substrate cannot be used here.
func Open(ctx context.Context, h *statedir.Dir, o executor.Options, t *turnstone.Template, name string) (
	s substrate.Substrate, m substrate.Machine, err error) {
	agent, err := agentbin.Agent(o.AgentFile)
	if err != nil {
		return nil, m, err
	}
	m = substrate.Machine{Agent: agent.Read, AgentDigest: agent.Digest, Root: t.Root, RootDigest: t.RootDigest,
		Shape: turnstone.DefaultShape()}
	guest := driver.KernelIn(h, kernel.Choice{Image: o.Kernel, Modules: o.KernelModules}, func(string) {})
	withKernel := func(ctx context.Context) (substrate.Machine, error) {
		return guest.Fill(ctx, m, kernel.Program(agent))
	}
	choose := driver.Chooser{Home: h, Programs: driver.Programs{Runsc: o.Runsc,
		Firecracker: o.Firecracker, Jailer: o.Jailer}, Probe: withKernel, Kernel: guest.Guest}
	if s, err = choose.Choose(ctx, name, driver.Needs{}); err != nil {
		return nil, m, err
	}
	if _, own := s.(substrate.OwnKernel); !own {
		m, err = withKernel(ctx)
	}
	return s, m, err
}

// A Clone is a machine that has run a command.
type Clone struct {
	Took   time.Duration // of its first command
	vm     substrate.Sandbox
	client *wire.Client
	link   *wire.Link
}

// Close ends the machine.
func (c *Clone) Close() { _, _, _ = c.vm.Close(), c.client.Close(), c.link.Close() }

// Start does a turn's work in a driver and the agent: it restores a machine, configures it, and runs true.
func Start(ctx context.Context, s substrate.Substrate, m substrate.Machine) (*Clone, error) {
	vm, err := s.Restore(ctx, m)
	if err != nil {
		return nil, err
	}
	client, link, err := substratetest.Configure(ctx, vm, m,
		&wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
			DNS: []string{network.DNS}})
	if err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	c := &Clone{vm: vm, client: client, link: link}
	began := time.Now()
	end, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", "true"}},
		wire.Stdio{})
	c.Took = time.Since(began)
	if err == nil && end.Exit.ExitCode != 0 {
		err = errors.New("true failed")
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
