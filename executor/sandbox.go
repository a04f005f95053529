package executor

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/engine"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A SandboxRequest is one sandbox to create. Zero fields select the defaults.
type SandboxRequest struct {
	Image string   // default "base"
	Env   []string // KEY=VALUE, for all processes
	// Shape of the machine. In a Shape with other fields, a zero CPUs, Memory or Disk is the
	// template's or the default, and Network false means no network.
	Shape     turnstone.Shape
	Network   *turnstone.NetworkSpec // rules of its network; nil: the host's
	Substrate string                 // "auto" or the name of a substrate
	On        string                 // the turn whose state the sandbox starts from; empty: none
}

// A Sandbox is a running sandbox, which ends with this process. It is safe for concurrent use.
type Sandbox struct{ s *sandbox.Sandbox }

// Create creates a sandbox. The caller must Close the sandbox. preparing is called before long
// operations; it may be nil.
func (x *Executor) Create(ctx context.Context, req SandboxRequest, preparing func(string)) (
	*Sandbox, error) {
	s, err := x.engine.Create(ctx, engine.CreateRequest{Image: req.Image, Env: req.Env,
		Shape: req.Shape, Network: req.Network, Substrate: req.Substrate, On: req.On}, preparing)
	if err != nil {
		return nil, err
	}
	return &Sandbox{s}, nil
}

// ID returns the sandbox's ID.
func (s *Sandbox) ID() turnstone.SandboxID { return s.s.ID() }

// Client returns the connection to the sandbox's agent. It is closed by Close.
func (s *Sandbox) Client() *wire.Client { return s.s.Client() }

// Close ends the sandbox and frees its resources.
func (s *Sandbox) Close() error { return s.s.Close() }

// OpenMachine creates the machine of a sandbox that outlives its caller, in the holder process of
// the sandbox: it is a sandboxes.Opener.
func (x *Executor) OpenMachine(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec,
	progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
	return x.engine.OpenMachine(ctx, id, spec, progress)
}

// Resume starts the machine that a turn kept (snapshot: vm), with its processes, in a sandbox that
// outlives this process. progress may be nil.
func (x *Executor) Resume(ctx context.Context, req ResumeRequest, progress func(string)) (
	sandboxes.Info, error) {
	return x.engine.Resume(ctx, engine.ResumeRequest(req), progress)
}
