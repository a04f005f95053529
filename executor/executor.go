// Package executor runs turns: it is the place where documents, templates and
// substrates meet.
//
// A program that embeds this package ships two programs for Linux beside its own:
//
//   - turn-agent, which runs inside of each sandbox. "make build" embeds the agent in the package
//     internal/guest/agentbin of the checkout. The agent is not in git, so a module from a module
//     proxy has none: name a file in Options.AgentFile.
//   - runsc, the gVisor of this project, which "make build" writes to bin/runsc. Put runsc beside
//     the program or into PATH, or name a file in Options.Runsc. gVisor's own runsc is rejected.
//     A host with QEMU, or with Firecracker and KVM, needs no runsc.
//
// Both must be of the version of the module. A sandbox that outlives the program also requires
// the command turn of this version: see Options.Holder.
package executor

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/engine"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
)

// DefaultImage is the image of a document that names none.
const DefaultImage = plan.DefaultImage

// An Executor runs turns, and keeps them, with one state directory. It is safe for concurrent use.
type Executor struct {
	engine *engine.Engine
	repo   *repo.Repo
}

// Open returns an executor on the state directory that o names. The caller must Close it. An
// error is of kind Invalid where another user could write to the state directory, and of
// kind Unavailable where it cannot be made.
func Open(_ context.Context, o Options) (*Executor, error) {
	return of(engine.Open(engine.Options(o)))
}

// Planner returns an executor for Check and Asks alone: it makes no state directory. An error is of
// kind Invalid where the host's configuration cannot be read.
func Planner(o Options) (*Executor, error) { return of(engine.Planner(engine.Options(o))) }

func of(e *engine.Engine, err error) (*Executor, error) {
	if err != nil {
		return nil, err
	}
	return &Executor{engine: e, repo: e.Repo}, nil
}

// Close closes the context store, if it was opened. Turns that still run through x count as
// interrupted.
func (x *Executor) Close() error { return x.engine.Close() }

// Run runs one turn and returns it with its receipt. An error without a Turn means that nothing
// was started: of kind Invalid or KindNotFound, that the request is wrong. A turn that began
// always comes back, its Result telling how it ended; when ctx is cancelled it is "error" and the
// receipt says at which step. obs may be nil.
func (x *Executor) Run(ctx context.Context, req Request, obs Observer) (
	*turnstone.TurnReport, error) {
	return x.engine.Run(ctx, plan.Request(req), obs)
}

// Replay runs the turn that ref names again, in a clean sandbox on the state of its parent, with
// the same document, files and environment. The new turn becomes part of no session.
func (x *Executor) Replay(ctx context.Context, ref string, opts ReplayOptions, obs Observer) (
	*turnstone.ReplayReport, error) {
	return x.engine.Replay(ctx, ref, engine.ReplayOptions(opts), obs)
}

// Exec runs one command in a new sandbox and returns its exit code, 128+n when signal n ended it.
// Every error means that the command's own exit code is not known. preparing is called before what
// can take long; it may be nil.
func (x *Executor) Exec(ctx context.Context, req CommandRequest, preparing func(string)) (
	int, error) {
	return x.engine.Exec(ctx, engine.CommandRequest(req), preparing)
}

// Check looks for what no run of doc could have: on any machine, and on this host with its limits,
// its locked policy and the files that are there. dir and piped are as in Request. It starts
// nothing, and makes no state directory.
func (x *Executor) Check(doc *document.Document, dir string, piped bool) error {
	return plan.Check(x.engine.Dir.Root, doc, dir, piped)
}

// Asks lists what doc asks for and a run on this host, without any flags, would not grant; and the
// session that it needs. piped says that doc came through a pipe.
func (x *Executor) Asks(doc *document.Document, piped bool) ([]turnstone.Ask, error) {
	host, err := x.engine.Config()
	if err != nil {
		return nil, err
	}
	return plan.Asks(doc, piped, host), nil
}

// CheckScripts says if a step's script cannot run at all, because bash refuses to read it. Steps
// that are skipped or unparsed are not looked at. The error is a document.SyntaxErrors; it is
// another one when the check itself failed.
func CheckScripts(ctx context.Context, doc *document.Document) error {
	return plan.CheckScripts(ctx, doc)
}

// Shape returns the machine that the template or image called image asks for; empty stands for
// the default image. An unknown template has the default; a later look-up reports it.
func (x *Executor) Shape(image string) turnstone.Shape { return x.engine.Shape(image) }

// DefaultNetwork reports whether a sandbox of which nothing is said has a network on this host.
// The error is of kind Invalid when the host's policy cannot be read.
func (x *Executor) DefaultNetwork() (bool, error) { return x.engine.DefaultNetwork() }

// ReceiptFile returns the path of a turn's receipt in the state directory, or "" where there is
// none.
func (x *Executor) ReceiptFile(id turnstone.TurnID) string { return x.engine.ReceiptFile(id) }
