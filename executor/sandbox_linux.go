//go:build !turnstone_client

package executor

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/engine"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A Sandbox is a running sandbox, which ends with this process. It is safe for concurrent use.
type Sandbox struct{ s *engine.Sandbox }

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
