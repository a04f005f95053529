package turn

import (
	"cmp"
	"context"
	"errors"
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

// A Repeat describes the turn that a replay repeats.
type Repeat struct {
	Inputs  []turnstone.RecordInput
	Parents []turnstone.TurnID
	Session turnstone.SessionID // session of the repeated turn
	Of      turnstone.TurnID    // the repeated turn, whose home is used; empty: no home
	Fresh   bool                // the request is the caller's, not that of a record
	// Adds adds the new turn to the session and the branch of the request. Otherwise it is in no
	// session: Hold keeps it with this number, so that another turn can start from it.
	Adds   bool
	Number int
	Hold   *repo.Hold // may be nil
}

// Run runs one turn and returns its report with the receipt. If the report is nil, nothing was
// started; an error of kind Invalid or NotFound then means that the request is wrong. A turn that
// was started always has a report, and its Result says how the turn ended. If ctx ends, the result
// is "error" and the receipt names the interrupted step. obs may be nil.
func (x *Runner) Run(ctx context.Context, req plan.Request, obs Observer) (*turnstone.TurnReport,
	error) {
	return x.Repeat(ctx, req, nil, obs)
}

// Repeat is Run for a turn that repeats another turn. again may be nil.
func (x *Runner) Repeat(ctx context.Context, req plan.Request, again *Repeat,
	obs Observer) (*turnstone.TurnReport, error) {
	r, err := x.begin(ctx, req, again, nil, "", obs)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.run(ctx), nil
}

// begin returns the turn of req with its place in its session, before anything is started. The
// caller closes the turn. done is the work that the turn keeps; nil: it runs its steps. resumed is
// the interrupted turn to resume; empty: the turn is new.
func (x *Runner) begin(ctx context.Context, req plan.Request, again *Repeat, done *Done,
	resumed turnstone.TurnID, obs Observer) (_ *run, err error) {
	if obs == nil {
		obs = silent{}
	}
	req = req.Completed()
	facts, err := x.host.Facts()
	if err != nil {
		return nil, err
	}
	facts.Tier = func() (tier turnstone.Tier, without, err error) {
		return x.host.Launcher.Tier(ctx, x.host.Kernel(facts.Config), obs.Preparing)
	}
	a := &plan.Authority{Request: req, Host: facts, Replays: again != nil && !again.Fresh}
	if err := a.Valid(); err != nil { // first, because no grant makes an invalid request valid
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
	if err := x.available(ctx, p, facts); err != nil {
		p.Close()
		return nil, err
	}
	if p.NotSeeded != nil {
		obs.Preparing("tier strict, because the tier seeded is not available: " +
			p.NotSeeded.Error())
	}
	r := &run{host: x.host, plan: p, again: again, done: done, doc: req.Document,
		clock: provision.NewStopwatch()}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if done == nil {
		if err := plan.CheckScripts(ctx, req.Document); err != nil {
			return nil, err
		}
	}
	r.obs = maskedObserver{obs, func(s string) string {
		return p.Secrets.Written().Mask(x.host.Paths.Text(s))
	}}
	r.info = document.TurnInfo{ID: cmp.Or(req.ID, turnstone.NewTurnID()), Started: time.Now().UTC(), Image: p.Image,
		Result: turnstone.ResultError}
	if done != nil {
		r.info.Started = done.Since.UTC()
	}
	if resumed != "" { // its lease comes first, because a running turn has locked its folder
		if err := r.reopen(context.WithoutCancel(ctx), resumed); err != nil {
			return nil, err
		}
	}
	r.folder, err = x.host.Repo.OpenTurnFolder(r.info.ID)
	if err != nil {
		r.obs.Preparing("receipt and long outputs are not kept in the state directory: " +
			err.Error())
	}
	// A started turn has a receipt, even if the caller has given up by now.
	if err := r.locate(context.WithoutCancel(ctx)); err != nil {
		r.folder.Remove()
		return nil, err
	}
	return r, nil
}

// available returns why this host does not have the substrate or the isolation that a manifest
// requires; nil: it has. What a document or its caller requires is refused at the start.
func (x *Runner) available(ctx context.Context, p *plan.Plan, facts plan.Host) error {
	what := p.RequiredByDefaults()
	if what == "" {
		return nil
	}
	err := x.host.Launcher.Has(ctx, x.host.Kernel(facts.Config), p.Driver, p.Needs())
	if err == nil {
		return nil
	}
	return turnstone.NewError("executor.plan", turnstone.KindOf(err), what, err).
		WithHint(turnstone.HintOf(err))
}

// close frees the turn's resources except its sandbox.
func (r *run) close() {
	r.snapshot.Remove()
	r.setup.Home.Close()
	r.inputs.Close()
	r.folder.Close()
	r.tape.Close()
	r.plan.Close()
}

// locate determines the turn's place in its session, and the values that depend on it.
func (r *run) locate(ctx context.Context) error {
	cs, err := r.host.Context(ctx)
	if err != nil {
		return err
	}
	req := place.Request{ID: r.info.ID, Title: title(r.doc), Session: r.plan.Session,
		Branch: r.plan.Branch, Repo: r.host.Repo}
	if r.done != nil {
		req.On = &r.done.On
	}
	if again := r.again; again != nil && !again.Adds {
		req.Replay, req.Parents = true, again.Parents
		req.Number, req.Hold = again.Number, again.Hold
		if again.Session != "" { // what is repeated in it is sealed as it is
			s, err := cs.DB.Find(ctx, string(again.Session))
			if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
				return err
			}
			req.Domain = s.Domain
		}
	}
	req.Before = func(d turnstone.DomainID) { r.keepFirst(ctx, cs, d) }
	if r.at == nil {
		if r.at, err = place.Take(ctx, cs, req); err != nil {
			return err
		}
	}
	settled, err := r.plan.On(r.at.Below(), r.host.Templates)
	if err == nil {
		err = r.seal(settled)
	}
	if err == nil {
		r.plan, r.shape = settled, settled.Shape
		err = r.openNetwork(ctx)
	}
	if err != nil {
		r.at.Abandon(ctx)
		return err
	}
	r.info.Image, r.info.Determinism = r.plan.Image, r.plan.Determinism
	r.info.Session, r.info.Branch = r.at.Session.Label(), r.plan.Branch
	r.info.Number, r.info.Parents = r.at.Turn.Number, r.at.Turn.Parents
	r.info.Secrets, r.info.Home = r.plan.Secrets.Names(), r.plan.Home
	r.openSteps()
	if err := r.restore(); err != nil {
		r.at.Abandon(ctx)
		return err
	}
	r.clock.Lap("session")
	return nil
}

// seal checks what a turn of a sealed session may ask for, and moves its folder to memory.
func (r *run) seal(p *plan.Plan) error {
	cs := r.at.Context
	for what, asked := range map[string]bool{
		"home: " + p.Home: p.Home != "",
	} {
		if asked {
			if err := cs.NotSealed(what); err != nil {
				return err
			}
		}
	}
	return r.folder.Seal(cs)
}

// openNetwork prepares the turn's network and its recording.
func (r *run) openNetwork(ctx context.Context) (err error) {
	on, base := r.startsOn()
	req := netrecord.Request{Host: r.host, Plan: on, Name: r.doc.Name, At: base,
		Sessions: []turnstone.SessionID{r.at.Session.ID}}
	if r.again != nil {
		req.Sessions = append(req.Sessions, r.again.Session)
	}
	r.tape, r.setup, err = netrecord.Open(ctx, req)
	r.setup.Turn = r.info.ID
	return err
}

// openSteps prepares the steps' results and the added files. The turn's plan and folder are final.
func (r *run) openSteps() {
	p := r.plan
	shown := "$TURN_HOME/turns/" + string(r.info.ID)
	if r.folder.Sealed() {
		shown = "" // the folder ends with the turn; the store has the outputs
	}
	r.inputs = &inputs.Inputs{Files: p.Add, Dir: r.folder.Dir, Floor: p.Host.Limits.FreeSpace,
		Secrets: p.Secrets}
	if r.again != nil {
		r.inputs.Replayed = r.again.Inputs
	}
	if r.began != nil {
		r.inputs.Replayed = r.began.Inputs
	}
	r.steps = receipt.New(receipt.Options{Document: r.doc, Secrets: p.Secrets, Cwd: p.Cwd,
		Commands: p.Commands, Dir: r.folder.Dir, Shown: shown,
		Paths: r.host.Paths, Limit: int64(p.Host.Limits.Output), Floor: p.Host.Limits.FreeSpace,
		Image:  func(program string) string { return provision.ImageWith(p.Image, program) },
		Output: r.obs.StepOutput})
}

// A run is a turn in progress.
type run struct {
	host   *host.Host
	plan   *plan.Plan
	again  *Repeat // the turn that this turn repeats; nil: none
	doc    *document.Document
	obs    Observer
	clock  *provision.Stopwatch
	folder *repo.TurnFolder // the folder of the turn's files
	at     *place.Place
	setup  provision.Setup // settings of the sandbox
	tape   *netrecord.Tape // recording of the network
	steps  *receipt.Steps
	inputs *inputs.Inputs // the added files

	info document.TurnInfo
	hint string
	kind turnstone.Kind // kind of the error that ended the turn early
	told bool           // a failure to write the receipt was reported

	shape    turnstone.Shape    // shape of the machine, after its start
	origin   *turnstone.Origin  // what the machine was made of; nil: unknown
	paused   *paused.Machine    // the session's machine; nil: the turn has a machine of its own
	done     *Done              // the work that the turn keeps; nil: the turn runs its steps
	snapshot *snapshot.Snapshot // the machine at the turn's end; nil: not requested

	from *resumption // what a resumed turn goes on from; nil: the turn begins at its beginning
	kept *keptSteps  // the turn's checkpoint; nil: it has none yet
	// began is the record of the beginning of a turn that starts again; nil: it does not.
	began *turnstone.TurnRecord
	base  turnstone.TreeRef // the tree below the sandbox's disk; zero: not known yet
}

// run runs the whole turn and returns its report. The reason for an early end is in r.info.
func (r *run) run(ctx context.Context) *turnstone.TurnReport {
	running, release := r.at.Running(ctx)
	left, err := r.execute(running)
	if lost := context.Cause(running); lost != nil && ctx.Err() == nil && err != nil {
		err = lost // another machine may run the turn again
	}
	release()
	r.info.Duration = time.Since(r.info.Started)
	if err != nil {
		r.fail(err)
	}
	if left == nil && r.resumable() {
		return r.report(r.interrupt())
	}
	return r.report(r.finish(ctx, left))
}

// finish stores the turn and its state; a nil state is none.
func (r *run) finish(ctx context.Context, left *state.Collected) committed {
	// The turn's data is stored even if the caller has given up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLimitTime)
	defer cancel()
	c, err := r.commit(ctx, left)
	r.settlePaused(ctx, err == nil && left != nil && !c.diverged)
	if err != nil {
		kind, hint := turnstone.KindOf(err), turnstone.HintOf(err)
		if hint == "" && turnstone.IsFull(err) {
			kind, hint = turnstone.KindExhausted, "free some space on the disk with the state directory"
		}
		r.fail(turnstone.NewError("executor.keep", kind, "the turn's state is not kept", err).WithHint(hint))
		if r.resumable() {
			return r.interrupt()
		}
		c = r.commitWithoutState()
	}
	r.keepReceipt(c.receipt)
	r.clock.Lap("keep")
	if err == nil && left != nil && !c.diverged {
		provision.Offer(ctx, r.host, r.setup, r.at.Context, r.info.ID, c.state)
	}
	return c
}

// keepLimitTime bounds the time for writing a turn's record.
const keepLimitTime = 10 * time.Minute

func (r *run) fail(err error) {
	r.info.Result = turnstone.ResultError
	r.setError(err)
}

// setError records err in the report and the receipt.
func (r *run) setError(err error) {
	r.info.Error, r.hint = r.steps.Cause(err), r.steps.Line(turnstone.HintOf(err))
	r.kind = turnstone.KindOf(err)
}

// report returns the caller's report of the turn.
func (r *run) report(c committed) *turnstone.TurnReport {
	i := &r.info
	return &turnstone.TurnReport{ID: i.ID, Result: i.Result, Error: i.Error, Hint: r.hint,
		Kind: r.kind, Substrate: i.Substrate, Isolation: i.Isolation, Machine: i.Machine,
		Template: i.Template, Image: i.Image,
		Started: i.Started, Duration: i.Duration, Millis: i.Duration.Milliseconds(),
		Session: i.Session, Number: i.Number, Branch: i.Branch, Diverged: c.diverged,
		Parents: i.Parents, Start: i.Start, FSHash: i.FSHash, State: c.state, Record: c.record,
		Layer: &c.layer, Network: c.network, Home: r.setup.Home.Describe(c.state != ""),
		Resumed:     r.resumptions(),
		Determinism: i.Determinism, Phases: r.clock.Phases, Receipt: string(c.receipt),
		Steps: r.steps.Reports()}
}

// A maskedObserver masks the turn's secrets in messages to an Observer. Outputs of steps are masked
// before.
type maskedObserver struct {
	Observer
	mask func(string) string
}

// Preparing implements Observer.
func (o maskedObserver) Preparing(what string) {
	o.Observer.Preparing(o.mask(what))
}

// canceled distinguishes an interruption by the caller from other ends.
func canceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// title returns the display title of a document.
func title(doc *document.Document) string {
	if doc.Title != "" {
		return doc.Title
	}
	if i := strings.LastIndexByte(doc.Name, '/'); i >= 0 {
		return doc.Name[i+1:]
	}
	return doc.Name
}
