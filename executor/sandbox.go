package executor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/agentbin"
	"turnstone.dev/turnstone/kernel"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/qemu"
	"turnstone.dev/turnstone/template"
	wire "turnstone.dev/turnstone/oldwire"
)

// A sandbox is a machine that was restored, made its own and is ready for steps.
type sandbox struct {
	substrate.Sandbox
	client   *wire.Client
	driver   substrate.Substrate
	template *template.Template
}

func (s *sandbox) close() {
	if s != nil {
		_ = s.client.Close()
		_ = s.Sandbox.Close()
	}
}

// guard ends s's machine when ctx has ended and release is not called soon after:
// a guest is asked to kill what it runs, and a hostile one need not obey.
func (x *Executor) guard(ctx context.Context, s *sandbox) (release func()) {
	released := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-released:
		case <-time.After(x.killGrace):
			_ = s.Sandbox.Close()
		}
	})
	return func() {
		stop()
		close(released)
	}
}

// fate prefers the reason why the machine ended to err, which is what its end
// looked like from the connection.
func (s *sandbox) fate(err error) error {
	if err == nil || turnstone.KindOf(err) != turnstone.Dead {
		return err
	}
	select {
	case <-s.Done():
		if cause := s.Err(); cause != nil {
			return cause
		}
	case <-time.After(2 * time.Second): // the connection is gone: the process follows
	}
	return err
}

// machine finds or makes everything a sandbox of p starts from. It is where the
// first run on a machine spends its minutes.
func (x *Executor) machine(ctx context.Context, p *plan, progress func(string), clock *stopwatch) (*template.Template, substrate.Machine, error) {
	var m substrate.Machine
	tmpl, err := x.templates().Ensure(ctx, p.image, progress)
	if err != nil {
		return nil, m, err
	}
	clock.lap("template")
	kernelDir, err := x.home.MkdirAll("kernel")
	if err != nil {
		return nil, m, err
	}
	k, err := kernel.Ensure(ctx, kernelDir, progress)
	if err != nil {
		return nil, m, err
	}
	agent, err := agentbin.Agent()
	if err != nil {
		return nil, m, err
	}
	initramfs, digest, err := k.Initramfs(ctx, kernelDir, agent)
	if err != nil {
		return nil, m, err
	}
	clock.lap("kernel")
	return tmpl, substrate.Machine{
		Kernel: k.Vmlinux, KernelDigest: k.Digest, Initramfs: initramfs, InitDigest: digest,
		Root: tmpl.Root, RootDigest: tmpl.RootDigest, Shape: p.shape,
	}, nil
}

func (x *Executor) templates() *template.Store {
	return template.NewStore(x.home.Path("templates"))
}

// open restores a sandbox for p and makes it its own.
func (x *Executor) open(ctx context.Context, p *plan, progress func(string), clock *stopwatch) (*sandbox, error) {
	tmpl, m, err := x.machine(ctx, p, progress, clock)
	if err != nil {
		return nil, err
	}
	driver, err := qemu.New(ctx, x.home, qemu.Options{Progress: progress, Probe: &m})
	if err != nil {
		return nil, err
	}
	clock.lap("substrate")
	vm, err := driver.Restore(ctx, m)
	if err != nil {
		return nil, err
	}
	clock.lap("restore")
	s := &sandbox{Sandbox: vm, driver: driver, template: tmpl}
	if s.client, err = wire.NewClient(vm.Agent()); err == nil {
		err = configure(ctx, s, p.shape)
	}
	if err != nil {
		err = s.fate(err)
		_ = vm.Close()
		return nil, err
	}
	clock.lap("configure")
	return s, nil
}

// configureLimit bounds how long a restored guest may take to confirm; it takes
// some ten milliseconds.
const configureLimit = time.Minute

// configure makes the clone a machine of its own, and refuses one that does not
// confirm that its random numbers are.
func configure(ctx context.Context, s *sandbox, shape turnstone.Shape) error {
	ctx, cancel := context.WithTimeout(ctx, configureLimit)
	defer cancel()
	// One that does not even read is ended by this, not by the protocol.
	defer context.AfterFunc(ctx, func() { _ = s.Sandbox.Close() })()
	entropy, machineID := make([]byte, 64), make([]byte, 16)
	_, _ = rand.Read(entropy) // documented never to fail
	_, _ = rand.Read(machineID)
	params := wire.ConfigureParams{
		Entropy: entropy, Time: time.Now(), Scratch: s.Scratch(),
		Hostname:  strings.ReplaceAll(string(s.ID()), "_", "-"),
		MachineID: hex.EncodeToString(machineID),
	}
	if shape.Network {
		params.Network = &wire.Network{Address: qemu.GuestAddress, Gateway: qemu.GuestGateway, DNS: []string{qemu.GuestDNS}}
	}
	res, err := s.client.Configure(ctx, params)
	if err != nil {
		return err
	}
	if !res.Reseeded {
		return &turnstone.Error{Op: "executor.configure", Kind: turnstone.Integrity, Subject: string(s.ID()),
			Err: errors.New("the sandbox did not confirm fresh random numbers; it is not used")}
	}
	return nil
}

// A stopwatch records the phases of a turn.
type stopwatch struct {
	last   time.Time
	phases []Phase
}

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

func (w *stopwatch) lap(name string) {
	now := time.Now()
	took := now.Sub(w.last)
	w.last = now
	w.phases = append(w.phases, Phase{Name: name, Took: took, Micros: took.Microseconds()})
}

// isCancel tells an interruption by the caller from other ends.
func isCancel(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
