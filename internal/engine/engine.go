// Package engine combines all operations of one state directory that run sandboxes: turns, replays,
// commands, separate sandboxes, kept and paused machines, and builds of templates.
package engine

import (
	"cmp"
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/repo/homes"
	"turnstone.dev/turnstone/internal/sandbox/command"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/templatebuild/buildsandbox"
	"turnstone.dev/turnstone/internal/turn"
	"turnstone.dev/turnstone/internal/turn/bisect"
	"turnstone.dev/turnstone/internal/turn/paused"
	"turnstone.dev/turnstone/internal/turn/replay"
	"turnstone.dev/turnstone/internal/turn/resume"
	"turnstone.dev/turnstone/internal/turn/sandboxturn"
	"turnstone.dev/turnstone/sandboxes"
)

// The requests of the operations, and a sandbox.
type (
	Options        = host.Options
	CommandRequest = command.Request
	CreateRequest  = provision.CreateRequest
	ResumeRequest  = resume.Request
	ReplayOptions  = replay.Options
	FrozenRequest  = replay.FrozenRequest
	RangeRequest   = replay.RangeRequest
	BisectRequest  = bisect.Request
	TimesRequest   = replay.TimesRequest

	ResumeTurnRequest = replay.ResumeRequest
	Sandbox           = provision.Sandbox
)

// An Engine is a host with its runner of turns. It is safe for concurrent use.
type Engine struct {
	*host.Host
	*turn.Runner
}

// Open returns the engine of the state directory that o names. The caller must Close the engine.
// The error is of kind Invalid if another user can write to the state directory, and of kind
// Unavailable if it cannot be created.
func Open(o Options) (*Engine, error) {
	dir, err := o.Open()
	if err != nil {
		return nil, err
	}
	return New(dir, o), nil
}

// Planner returns an engine for plans alone: it creates no state directory.
func Planner(o Options) (*Engine, error) {
	dir, err := o.Locate()
	if err != nil {
		return nil, err
	}
	return New(dir, o), nil
}

// New returns the engine of the state directory dir.
func New(dir *statedir.Dir, o Options) *Engine {
	h := host.New(dir, o, buildsandbox.Builder)
	return &Engine{h, turn.New(h)}
}

// Close closes the context store, if it was opened, and waits for the ends of machines whose turns
// have ended. Turns that still run count as interrupted.
func (x *Engine) Close() error {
	x.Launcher.Wait()
	return x.Repo.Close()
}

// Replay runs the turn that ref names again: see replay.Run.
func (x *Engine) Replay(ctx context.Context, ref string, opts ReplayOptions, obs turn.Observer) (
	*turnstone.ReplayReport, error) {
	cs, err := x.Context(ctx)
	if err != nil {
		return nil, err
	}
	return replay.Run(ctx, x.Runner, cs, ref, opts, obs)
}

// ResumeTurn continues an interrupted turn: see replay.Resume.
func (x *Engine) ResumeTurn(ctx context.Context, req ResumeTurnRequest, obs turn.Observer) (
	*turnstone.TurnReport, error) {
	cs, err := x.Context(ctx)
	if err != nil {
		return nil, err
	}
	return replay.Resume(ctx, x.Runner, cs, req, obs)
}

// ReplayRange runs turns again, one on the other: see replay.Range.
func (x *Engine) ReplayRange(ctx context.Context, req RangeRequest, obs turn.Observer) (
	*turnstone.RangeReport, error) {
	cs, err := x.Context(ctx)
	if err != nil {
		return nil, err
	}
	return replay.Range(ctx, x.Runner, cs, req, obs)
}

// Times runs a turn several times: see replay.Times.
func (x *Engine) Times(ctx context.Context, req TimesRequest, obs turn.Observer) (
	*turnstone.TurnReport, error) {
	cs, err := x.Context(ctx)
	if err != nil {
		return nil, err
	}
	return replay.Times(ctx, x.Runner, cs, req, obs)
}

// Frozen runs a receipt again: see replay.Frozen.
func (x *Engine) Frozen(ctx context.Context, req FrozenRequest, obs turn.Observer) (
	*turnstone.FrozenReport, error) {
	cs, err := x.Context(ctx)
	if err != nil {
		return nil, err
	}
	return replay.Frozen(ctx, x.Runner, cs, req, obs)
}

// Bisect finds the first turn or command that differs: see bisect.Run.
func (x *Engine) Bisect(ctx context.Context, req BisectRequest, obs turn.Observer) (
	*turnstone.BisectReport, error) {
	return bisect.Run(ctx, x.Host, x.Runner, req, obs)
}

// Exec runs one command: see command.Run.
func (x *Engine) Exec(ctx context.Context, req CommandRequest, preparing func(string)) (
	int, error) {
	return command.Run(ctx, x.Host, req, preparing)
}

// Create creates a sandbox for the caller: see provision.Create.
func (x *Engine) Create(ctx context.Context, req CreateRequest, preparing func(string)) (
	*provision.Sandbox, error) {
	return provision.Create(ctx, x.Host, req, preparing)
}

// OpenMachine creates the machine of a sandbox for its holder. It is a sandboxes.Opener.
func (x *Engine) OpenMachine(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec,
	progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
	return sandboxturn.Open(ctx, x.Host, x.Runner, id, spec, progress)
}

// Resume starts the machine that a turn kept: see resume.Resume.
func (x *Engine) Resume(ctx context.Context, req ResumeRequest, progress func(string)) (
	sandboxes.Info, error) {
	return resume.Resume(ctx, x.Host, req, progress)
}

// ForkLive creates a branch with a clone of a paused machine: see paused.ForkLive.
func (x *Engine) ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	return paused.ForkLive(ctx, x.Host, ref, name)
}

// RemoveSession removes a session, and ends its paused machines.
func (x *Engine) RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	return paused.RemoveSession(ctx, x.Host, nameOrID)
}

// SealSessions seals sessions, in order up to one of which a sandbox runs: see repo.Repo.Seal.
func (x *Engine) SealSessions(ctx context.Context, namesOrIDs []string) (*turnstone.SealReport, error) {
	var runs error
	for i, name := range namesOrIDs {
		if runs = sandboxturn.NoneRuns(ctx, x.Host, "executor.seal", name); runs != nil {
			namesOrIDs = namesOrIDs[:i]
			break
		}
	}
	rep, err := x.Repo.Seal(ctx, namesOrIDs)
	return rep, cmp.Or(err, runs)
}

// ShredSession destroys the key of a sealed session of which no sandbox runs, and removes it: see
// repo.Repo.Shred.
func (x *Engine) ShredSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	if err := sandboxturn.NoneRuns(ctx, x.Host, "executor.shred", nameOrID); err != nil {
		return turnstone.Session{}, err
	}
	s, err := x.Repo.Shred(ctx, nameOrID)
	if err != nil {
		return s, err
	}
	return s, paused.End(ctx, x.Host, s.ID, "")
}

// RemoveBranch removes a branch of a session, and ends its paused machine.
func (x *Engine) RemoveBranch(ctx context.Context, nameOrID, branch string) error {
	return paused.RemoveBranch(ctx, x.Host, nameOrID, branch)
}

// Homes returns the persistent home directories.
func (x *Engine) Homes() *homes.Homes { return homes.In(x.Repo) }

// Bundles returns the exporter and importer of sessions. It imports nothing while the disk is
// nearly full.
func (x *Engine) Bundles() bundle.Host {
	return bundle.Host{Repo: x.Repo, Templates: x.Templates, Room: x.Room}
}
