// Package gvisor is the substrate that runs sandboxes under gVisor's kernel, a
// kernel in user space (https://gvisor.dev), with its program runsc. It needs no
// virtual machine and no rights, and runs code at native speed. A sandbox starts
// from a checkpoint of its waiting agent.
package gvisor

import (
	"context"
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/substrate"
)

var (
	_ substrate.Substrate = (*Substrate)(nil)
	_ substrate.OwnKernel = (*Substrate)(nil)
	_ substrate.Keeper    = (*Substrate)(nil)
)

// Substrate starts sandboxes of gVisor. It is safe for concurrent use, also from
// several processes with one home.
type Substrate struct {
	home     *home.Home
	binary   string
	progress func(string)
}

// Options are what a Substrate is made with.
type Options struct {
	Binary   string       // runsc; empty: TURN_RUNSC, then beside the running program, then PATH
	Progress func(string) // told before work that takes long; may be nil
}

// New finds runsc. The error is of kind Unavailable, with a hint, where there is none.
func New(ctx context.Context, h *home.Home, opts Options) (*Substrate, error) {
	return nil, unavailable("gvisor.new")
}

// Usable tells whether a sandbox really starts here, and if not, why. It is tried
// once and remembered in the home.
func (s *Substrate) Usable(ctx context.Context) (ok bool, why string) {
	return false, "not built in yet"
}

// Name implements substrate.Substrate.
func (s *Substrate) Name() string { return "gvisor" }

// Isolation implements substrate.Substrate.
func (s *Substrate) Isolation() string { return "gvisor (systrap)" }

// OwnKernel implements substrate.OwnKernel.
func (s *Substrate) OwnKernel() {}

// Version is the text by which runsc names its version.
func (s *Substrate) Version() string { return "" }

// Boot implements substrate.Substrate.
func (s *Substrate) Boot(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	return nil, unavailable("gvisor.boot")
}

// Restore implements substrate.Substrate.
func (s *Substrate) Restore(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	return nil, unavailable("gvisor.restore")
}

// RestoreFrom implements substrate.Resumer.
func (s *Substrate) RestoreFrom(ctx context.Context, m substrate.Machine, dir string) (substrate.Sandbox, error) {
	return nil, unavailable("gvisor.restore")
}

// Pack implements substrate.Keeper.
func (s *Substrate) Pack(ctx context.Context, m substrate.Machine, dir, out string) (substrate.Packed, error) {
	return substrate.Packed{}, unavailable("gvisor.pack")
}

// Unpack implements substrate.Keeper.
func (s *Substrate) Unpack(ctx context.Context, m substrate.Machine, packed, dir string) error {
	return unavailable("gvisor.unpack")
}

func unavailable(op string) error {
	return &turnstone.Error{Op: op, Kind: turnstone.Unavailable, Subject: "gvisor", Err: errors.New("it is not built in yet"), Hint: "use --substrate qemu"}
}
