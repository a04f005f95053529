package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// A product is this project on one substrate.
type product struct {
	b       *bench
	name    string
	driver  substrate.Substrate
	machine substrate.Machine
}

// product opens the substrate called name. The error is the reason why it cannot be used here.
func (b *bench) product(ctx context.Context, name string) (*product, error) {
	o := b.options()
	agent, err := agentbin.Agent(o.AgentFile)
	if err != nil {
		return nil, err
	}
	p := &product{b: b, name: name,
		machine: substrate.Machine{Agent: agent.Read, AgentDigest: agent.Digest,
			Root: b.template.Root, RootDigest: b.template.RootDigest,
			Shape: turnstone.DefaultShape()}}
	guest := driver.KernelIn(b.home, kernel.Choice{Image: o.Kernel, Modules: o.KernelModules},
		func(string) {})
	withKernel := func(ctx context.Context) (substrate.Machine, error) {
		return guest.Fill(ctx, p.machine, kernel.Program(agent))
	}
	choose := driver.Chooser{Home: b.home, Programs: driver.Programs{Runsc: o.Runsc,
		Firecracker: o.Firecracker, Jailer: o.Jailer}, Probe: withKernel, Kernel: guest.Guest}
	if p.driver, err = choose.Choose(ctx, name, driver.Needs{}); err != nil {
		return nil, err
	}
	if _, own := p.driver.(substrate.OwnKernel); !own {
		p.machine, err = withKernel(ctx)
	}
	return p, err
}

// A running is a clone that has answered.
type running struct {
	vm     substrate.Sandbox
	client *wire.Client
	link   *wire.Link
	took   time.Duration // duration of its first command
}

func (r *running) close() { _, _, _ = r.vm.Close(), r.client.Close(), r.link.Close() }

// startTrue runs a turn's work in a driver and the agent: restore, configure, run true.
func startTrue(ctx context.Context, driver substrate.Substrate,
	m substrate.Machine) (*running, error) {
	vm, err := driver.Restore(ctx, m)
	if err != nil {
		return nil, err
	}
	client, link, err := substratetest.Configure(ctx, vm, m,
		&wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
			DNS: []string{network.DNS}})
	if err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	r := &running{vm: vm, client: client, link: link}
	began := time.Now()
	end, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", "true"}},
		wire.Stdio{})
	r.took = time.Since(began)
	if err == nil && end.Exit.ExitCode != 0 {
		err = errors.New("true failed")
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (p *product) start(ctx context.Context) (time.Duration, error) {
	t, took, err := p.b.run(ctx, step("true"), nil, "--substrate", p.name)
	if err == nil && t.Isolation != p.driver.Isolation() {
		err = errors.New("it ran on " + t.Isolation)
	}
	return took, err
}

func (p *product) restore(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	r, err := startTrue(ctx, p.driver, p.machine)
	took := time.Since(began)
	if err == nil {
		r.close()
	}
	return took, err
}

// command returns the duration of a clone's first command.
func (p *product) command(ctx context.Context) (time.Duration, error) {
	r, err := startTrue(ctx, p.driver, p.machine)
	if err != nil {
		return 0, err
	}
	defer r.close()
	return r.took, nil
}

// fork returns the duration from `turn sandbox fork` until the clone has run true.
func (p *product) fork(ctx context.Context) (time.Duration, error) {
	out, err := exec.CommandContext(ctx, p.b.turn, "sandbox", "create", "-q", "--substrate",
		p.name).Output()
	if err != nil {
		return 0, err
	}
	s := sandboxes.NewStore(p.b.home.Root)
	parent := turnstone.SandboxID(strings.TrimSpace(string(out)))
	made := []turnstone.SandboxID{parent}
	defer func() {
		for _, id := range made {
			_ = s.Remove(context.WithoutCancel(ctx), id)
		}
	}()
	f, err := p.b.fork(ctx, s, parent, 1)
	made = append(made, f.ids...)
	return f.answered, err
}

// script runs a script in a fresh sandbox with access to one port of this machine.
func (p *product) script(ctx context.Context, text string) (string, error) {
	box, err := p.b.create(ctx, executor.SandboxRequest{Substrate: p.name,
		Network: &turnstone.NetworkSpec{Allow: []string{p.b.peer.addr}}})
	if err != nil {
		return "", err
	}
	defer func() { _ = box.Close() }()
	var out, said strings.Builder
	end, err := box.Client().Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", text}},
		wire.Stdio{Out: &out, Err: &said})
	if err == nil && end.Exit.ExitCode != 0 {
		err = errors.New(said.String())
	}
	return out.String(), err
}

func (p *product) memory(ctx context.Context) (processMemory, error) {
	all, err := memoryOfClones(ctx, p.driver, p.machine)
	if err != nil {
		return processMemory{}, err
	}
	var pss, private []int64
	for _, m := range all {
		pss, private = append(pss, m.pss), append(private, m.private)
	}
	return processMemory{pss: medianOf(pss), private: medianOf(private)}, nil
}
