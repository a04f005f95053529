package turn

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/inputs"
	"turnstone.dev/turnstone/internal/turn/netrecord"
	"turnstone.dev/turnstone/internal/turn/paused"
	"turnstone.dev/turnstone/internal/turn/place"
	"turnstone.dev/turnstone/internal/turn/snapshot"
	"turnstone.dev/turnstone/internal/turn/state"
)

// A Runner runs turns on a host. It is safe for concurrent use.
type Runner struct{ host *host.Host }

// New returns a runner on h.
func New(h *host.Host) *Runner { return &Runner{h} }

// A Repeat is what a turn has that repeats another.
type Repeat struct {
	Inputs  []turnstone.RecordInput
	Parents []turnstone.TurnID
	Session turnstone.SessionID // of the other turn
}

// Run runs one turn and returns it with its receipt. An error without a Turn
// means that nothing was started: of kind Invalid or KindNotFound, that the request
// is wrong. A turn that began always comes back, its Result telling how it ended;
// when ctx is cancelled it is "error" and the receipt says at which step. obs may be nil.
func (x *Runner) Run(ctx context.Context, req plan.Request, obs Observer) (*turnstone.TurnReport,
	error) {
	return x.Repeat(ctx, req, nil, obs)
}

// Repeat is Run, of a turn that repeats another: it becomes part of no session. again may be nil.
func (x *Runner) Repeat(ctx context.Context, req plan.Request, again *Repeat,
	obs Observer) (*turnstone.TurnReport, error) {
	r, err := x.begin(ctx, req, again, obs)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.run(ctx), nil
}

// begin returns the turn that req asks for with its place in its session, before anything is
// started. The caller closes it.
func (x *Runner) begin(ctx context.Context, req plan.Request, again *Repeat,
	obs Observer) (_ *run, err error) {
	if obs == nil {
		obs = silent{}
	}
	facts, err := x.host.Facts()
	if err != nil {
		return nil, err
	}
	a := &plan.Authority{Request: req, Host: facts, Replays: again != nil}
	if err := a.Valid(); err != nil { // first: no grant makes it right
		return nil, err
	}
	if err := a.Check(); err != nil {
		return nil, err
	}
	spec, err := x.host.TemplatesFor(a.Anonymous()).Resolve(ctx,
		cmp.Or(req.Image, req.Document.Front.Image, plan.DefaultImage), obs.Preparing)
	if err != nil {
		return nil, err
	}
	p, err := plan.Make(a, spec.Name, spec.Workdir)
	if err != nil {
		return nil, err
	}
	r := &run{host: x.host, plan: p, again: again, doc: req.Document,
		clock: provision.NewStopwatch()}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err := plan.CheckScripts(ctx, req.Document); err != nil {
		return nil, err
	}
	r.obs = maskedObserver{obs, p.Secrets.Written().Mask}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now().UTC(), Image: p.Image,
		Result: turnstone.ResultError}
	r.folder, err = x.host.Repo.OpenTurnFolder(r.info.ID)
	if err != nil {
		r.obs.Preparing("receipt and long outputs are not kept in the state directory: " +
			err.Error())
	}
	// Also when the caller has given up by now: a turn that was asked for has a receipt.
	if err := r.locate(context.WithoutCancel(ctx)); err != nil {
		_ = os.Remove(r.folder.Dir)
		return nil, err
	}
	return r, nil
}

// close frees what the turn holds beside its sandbox.
func (r *run) close() {
	r.snapshot.Remove()
	r.inputs.Close()
	r.folder.Close()
	r.tape.Close()
	r.plan.Close()
}

// locate finds the turn's place in its session, and what follows from it.
func (r *run) locate(ctx context.Context) error {
	cs, err := r.host.Context(ctx)
	if err != nil {
		return err
	}
	req := place.Request{ID: r.info.ID, Title: title(r.doc), Session: r.plan.Session,
		Branch: r.plan.Branch}
	if r.again != nil {
		req.Replay, req.Parents = true, r.again.Parents
	}
	if r.at, err = place.Take(ctx, cs, req); err != nil {
		return err
	}
	settled, err := r.plan.On(r.at.Below(), r.host.Templates)
	if err == nil {
		r.plan, r.shape = settled, settled.Shape
		err = r.openNetwork(ctx)
	}
	if err != nil {
		r.at.Abandon(ctx)
		return err
	}
	r.info.Image = r.plan.Image
	r.info.Session, r.info.Branch = r.at.Session.Label(), r.plan.Branch
	r.info.Number, r.info.Parents = r.at.Turn.Number, r.at.Turn.Parents
	r.info.Secrets, r.info.Home = r.plan.Secrets.Names(), r.plan.Home
	r.openSteps()
	r.clock.Lap("session")
	return nil
}

// openNetwork gets ready the turn's network, and its recording.
func (r *run) openNetwork(ctx context.Context) (err error) {
	req := netrecord.Request{Host: r.host, Plan: r.plan, Name: r.doc.Name, At: r.at.Base,
		Sessions: []turnstone.SessionID{r.at.Session.ID}}
	if r.again != nil {
		req.Sessions = append(req.Sessions, r.again.Session)
	}
	r.tape, r.setup, err = netrecord.Open(ctx, req)
	r.setup.Turn = r.info.ID
	return err
}

// openSteps gets ready what becomes the receipt, and the files that are added. The turn's plan and
// folder are settled.
func (r *run) openSteps() {
	p := r.plan
	r.inputs = &inputs.Inputs{Files: p.Add, Dir: r.folder.Dir, Floor: p.Host.Limits.FreeSpace,
		Secrets: p.Secrets}
	if r.again != nil {
		r.inputs.Replayed = r.again.Inputs
	}
	r.steps = receipt.New(receipt.Options{Document: r.doc, Secrets: p.Secrets, Cwd: p.Cwd,
		Commands: p.Commands,
		Dir:      r.folder.Dir, Shown: "$TURN_HOME/turns/" +
			string(r.info.ID), Limit: int64(p.Host.Limits.Output), Floor: p.Host.Limits.FreeSpace,
		Image: func(program string) string {
			return provision.ImageWith(p.Image,
				program)
		}, Output: r.obs.StepOutput})
}

// run is one turn on its way.
type run struct {
	host   *host.Host
	plan   *plan.Plan
	again  *Repeat // the turn that this one repeats; nil: none
	doc    *document.Document
	obs    Observer
	clock  *provision.Stopwatch
	folder *repo.TurnFolder // where the turn's files are kept
	at     *place.Place
	setup  provision.Setup // of its sandbox
	tape   *netrecord.Tape // of the network
	steps  *receipt.Steps
	inputs *inputs.Inputs // files that are added

	info document.TurnInfo
	hint string
	kind turnstone.Kind // of what ended it early
	told bool           // that the receipt cannot be written

	shape    turnstone.Shape    // of the machine, once there is one
	paused   *paused.Machine    // the session's machine; nil: the turn has one of its own
	snapshot *snapshot.Snapshot // the machine as it was at the end; nil: it was not asked for
}

// run is the turn from end to end, with its report. What ends it early is in r.info afterwards.
func (r *run) run(ctx context.Context) *turnstone.TurnReport {
	left, err := r.execute(ctx)
	r.info.Duration = time.Since(r.info.Started)
	if err != nil {
		r.fail(err)
	}
	return r.report(r.finish(ctx, left))
}

// finish keeps the turn, and what it left; nil: it left no state.
func (r *run) finish(ctx context.Context, left *state.Collected) committed {
	// What it did is kept also when the caller has given up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLimitTime)
	defer cancel()
	c, err := r.commit(ctx, left)
	r.settlePaused(ctx, err == nil && left != nil && !c.diverged)
	if err != nil {
		r.fail(turnstone.NewError("executor.keep", turnstone.KindOf(err),
			"what the turn left is not kept", err).WithHint(turnstone.HintOf(err)))
		c = r.commitWithoutState()
	}
	r.keepReceipt(c.receipt)
	r.clock.Lap("keep")
	return c
}

// keepLimitTime bounds how long a turn's record may take to be written.
const keepLimitTime = 10 * time.Minute

func (r *run) fail(err error) {
	r.info.Result = turnstone.ResultError
	r.setError(err)
}

// setError keeps what err says.
func (r *run) setError(err error) {
	r.info.Error, r.hint = r.steps.Line(err.Error()), r.steps.Line(turnstone.HintOf(err))
	r.kind = turnstone.KindOf(err)
}

// report is what the caller gets of the turn.
func (r *run) report(c committed) *turnstone.TurnReport {
	i := &r.info
	return &turnstone.TurnReport{ID: i.ID, Result: i.Result, Error: i.Error, Hint: r.hint,
		Kind: r.kind, Substrate: i.Substrate, Isolation: i.Isolation, Machine: i.Machine,
		Template: i.Template, Image: i.Image,
		Started: i.Started, Duration: i.Duration, Millis: i.Duration.Milliseconds(),
		Session: i.Session, Number: i.Number, Branch: i.Branch, Diverged: c.diverged,
		Parents: i.Parents, Start: i.Start, FSHash: i.FSHash, State: c.state, Record: c.record,
		Layer: &c.layer, Network: c.network, Phases: r.clock.Phases, Receipt: string(c.receipt),
		Steps: r.steps.Reports()}
}

// A maskedObserver tells what is told of a turn without its secrets. What steps
// print comes to it masked.
type maskedObserver struct {
	Observer
	mask func(string) string
}

// Preparing implements Observer.
func (o maskedObserver) Preparing(what string) {
	o.Observer.Preparing(o.mask(what))
}

// canceled tells an interruption by the caller from other ends.
func canceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// title is what lists call a document.
func title(doc *document.Document) string {
	if doc.Title != "" {
		return doc.Title
	}
	if i := strings.LastIndexByte(doc.Name, '/'); i >= 0 {
		return doc.Name[i+1:]
	}
	return doc.Name
}
