//go:build !turnstone_client

package executor

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/engine"
	"turnstone.dev/turnstone/internal/hostkeys"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/chain"
)

// DefaultImage is the image of a document that names none: the template "base".
const DefaultImage = plan.DefaultImage

// An Executor runs and stores turns with one state directory. It is safe for concurrent use, also
// by several processes.
type Executor struct {
	engine *engine.Engine
	repo   *repo.Repo
	keys   *hostkeys.Keys
}

// Open returns an executor on the state directory that o names. The caller must Close the executor.
// The error is of kind KindInvalid if another user can write to the state directory, and of kind
// KindUnavailable if the directory cannot be made. ctx is reserved for later use.
func Open(_ context.Context, o Options) (*Executor, error) {
	e, err := engine.Open(engine.Options(o))
	return of(e, err, o)
}

// Planner returns an executor for Check and Asks alone: it makes no state directory. The error is
// of kind KindInvalid if the host's configuration cannot be read.
func Planner(o Options) (*Executor, error) {
	e, err := engine.Planner(engine.Options(o))
	return of(e, err, o)
}

func of(e *engine.Engine, err error, o Options) (*Executor, error) {
	if err != nil {
		return nil, err
	}
	keys := hostkeys.New(e.Dir, e.Repo.Passphrase, o.VaultToken)
	e.Repo.Heads, e.Repo.Keys = chain.Heads(e.Dir), keys
	return &Executor{engine: e, repo: e.Repo, keys: keys}, nil
}

// Close closes x: later operations on stored turns return an error of kind Unavailable. Turns that
// still run with x count as interrupted.
func (x *Executor) Close() error {
	err := x.engine.Close()
	x.keys.Close()
	return err
}

// Run runs one turn and returns its report with the receipt. If the report is nil, nothing was
// started; an error of kind KindInvalid or KindNotFound then means that the request is wrong. A
// turn that was started always has a report, and its Result says how the turn ended. If ctx ends,
// the result is "error" and the receipt names the interrupted step. obs may be nil.
func (x *Executor) Run(ctx context.Context, req Request, obs Observer) (
	*turnstone.TurnReport, error) {
	return x.engine.Run(ctx, plan.Request(req), obs)
}

// Times is Run, n times (2 to 100), each time on the same state, until a run differs from the first.
// Only the first run is in a session; its report compares the runs. An error with a report means
// that a later run could not be started or compared.
func (x *Executor) Times(ctx context.Context, req Request, n int, obs Observer) (
	*turnstone.TurnReport, error) {
	return x.engine.Times(ctx, engine.TimesRequest{Request: plan.Request(req), Times: n}, obs)
}

// Ended returns the report of a turn that does not run, from what is kept of it, for a caller that
// did not see its end. An interrupted turn has the result "error" and its last receipt, and can be
// resumed if resumable is set. The error is of kind NotFound if there is no such turn, and of kind
// Unavailable if it still runs.
func (x *Executor) Ended(ctx context.Context, id turnstone.TurnID) (rep *turnstone.TurnReport,
	resumable bool, err error) {
	return x.engine.Repo.Ended(ctx, id)
}

// ResumeTurn continues an interrupted turn with checkpoint: step after its last finished step, in a
// new sandbox, and ends it. The error is of kind Invalid if the turn runs or has ended, and of kind
// NotFound if none of its steps is kept. Otherwise ResumeTurn is like Run.
func (x *Executor) ResumeTurn(ctx context.Context, req ResumeTurnRequest, obs Observer) (
	*turnstone.TurnReport, error) {
	return x.engine.ResumeTurn(ctx, engine.ResumeTurnRequest(req), obs)
}

// Replay runs the turn that ref names again, in a clean sandbox on the state of its parent, with
// the same document, files and environment. The new turn is in no session. obs may be nil.
func (x *Executor) Replay(ctx context.Context, ref string, opts ReplayOptions, obs Observer) (
	*turnstone.ReplayReport, error) {
	return x.engine.Replay(ctx, ref, engine.ReplayOptions(opts), obs)
}

// ReplayRange runs turns again: the first on the state of its recorded parent, each other on the new
// turn before it. If the report is nil, nothing was started. obs may be nil.
func (x *Executor) ReplayRange(ctx context.Context, req RangeRequest, obs Observer) (
	*turnstone.RangeReport, error) {
	return x.engine.ReplayRange(ctx, engine.RangeRequest{Ref: req.Ref,
		Options: engine.ReplayOptions(req.Options), OnHead: req.OnHead, Branch: req.Branch,
		Each: req.Each}, obs)
}

// Frozen runs the document of a receipt again, on the state that the receipt names, and compares the
// new receipt with the old one. name is for messages. req has the caller's settings; its Document is
// ignored. The new turn is in no session. If the report is nil, nothing was started; an error of
// kind KindInvalid or KindNotFound then means that the receipt or the request is wrong. obs may be
// nil.
func (x *Executor) Frozen(ctx context.Context, name string, receipt []byte, req Request,
	obs Observer) (*turnstone.FrozenReport, error) {
	return x.engine.Frozen(ctx, engine.FrozenRequest{Name: name, Source: receipt,
		Request: plan.Request(req)}, obs)
}

// Bisect finds the first bad turn of a range, in a number of sandboxes that grows with the logarithm
// of its length, or the first command of a turn that differs when it is replayed. Without a command,
// all turns of a range are replayed in order. obs may be nil.
func (x *Executor) Bisect(ctx context.Context, req BisectRequest, obs Observer) (
	*turnstone.BisectReport, error) {
	return x.engine.Bisect(ctx, engine.BisectRequest{Ref: req.Ref,
		Command: engine.CommandRequest(req.Command), Options: engine.ReplayOptions(req.Options),
		Tell: req.Tell}, obs)
}

// Exec runs one command in a new sandbox and returns its exit code, or 128+n if signal n ended the
// command. An error means that the command's exit code is unknown. preparing is called before long
// operations; it may be nil.
func (x *Executor) Exec(ctx context.Context, req CommandRequest, preparing func(string)) (
	int, error) {
	return x.engine.Exec(ctx, engine.CommandRequest(req), preparing)
}

// Check reports the first error that every run of doc would report: on any host, and on this host
// with its limits, its locked policy and its files. dir and piped are Request.Dir and
// Request.Piped. Check starts nothing and makes no state directory. The error is of kind
// KindInvalid.
func (x *Executor) Check(doc *document.Document, dir string, piped bool) error {
	return plan.Check(x.engine.Dir.Root, doc, dir, piped)
}

// Asks lists the requests of doc that a run on this host rejects without further flags, and the
// session that doc requires, so that a program can request consent before Run. piped is
// Request.Piped.
func (x *Executor) Asks(doc *document.Document, piped bool) ([]turnstone.Ask, error) {
	if err := plan.HasDocument(doc); err != nil {
		return nil, err
	}
	host, err := x.engine.Config()
	if err != nil {
		return nil, err
	}
	return plan.Asks(doc, piped, host), nil
}

// CheckScripts reports the steps of doc whose script bash cannot parse, as a document.SyntaxErrors.
// Skipped steps and steps with the attribute unparsed are not checked. Any other error means that
// the check itself failed.
func CheckScripts(ctx context.Context, doc *document.Document) error {
	return plan.CheckScripts(ctx, doc)
}

// Shape returns the machine that the template or image called image requests; empty stands for
// DefaultImage. An unknown template has the default shape; a later lookup reports the template as
// missing.
func (x *Executor) Shape(image string) turnstone.Shape { return x.engine.Shape(image) }

// DefaultNetwork reports whether a sandbox has a network on this host if nothing requests or
// refuses a network, so that a program can show the default or fill in Shape.Network. The error is
// of kind KindInvalid if the host's policy cannot be read.
func (x *Executor) DefaultNetwork() (bool, error) { return x.engine.DefaultNetwork() }

// Substrates returns the names of the substrates that run sandboxes on this host.
func (x *Executor) Substrates(ctx context.Context) []string { return x.engine.Substrates(ctx) }

// ReceiptFile returns the path of a turn's receipt in the state directory, or "" if there is no
// receipt, for programs that name the file to their users.
func (x *Executor) ReceiptFile(id turnstone.TurnID) string { return x.engine.ReceiptFile(id) }

// Environ returns o as the variables that the command turn reads, for a holder. An option that is
// not set is an empty variable, which counts as unset. The state directory is not included because
// it is an argument of the holder.
func (o Options) Environ() []string { return engine.Options(o).Environ() }
