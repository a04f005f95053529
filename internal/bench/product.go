package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/bench/clones"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
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
	s, m, err := clones.Open(ctx, b.home, b.options(), b.template, name)
	return &product{b: b, name: name, driver: s, machine: m}, err
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
	r, err := clones.Start(ctx, p.driver, p.machine)
	took := time.Since(began)
	if err == nil {
		r.Close()
	}
	return took, err
}

// command returns the duration of a clone's first command.
func (p *product) command(ctx context.Context) (time.Duration, error) {
	r, err := clones.Start(ctx, p.driver, p.machine)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return r.Took, nil
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
	all, err := memoryOfClones(ctx, p.driver, p.machine, p.b.divide.Of(clonesAtOnce))
	if err != nil {
		return processMemory{}, err
	}
	var pss, private []int64
	for _, m := range all {
		pss, private = append(pss, m.pss), append(private, m.private)
	}
	return processMemory{pss: medianOf(pss), private: medianOf(private)}, nil
}
