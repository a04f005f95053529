package turn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/builtin"
	"turnstone.dev/turnstone/wire"
)

// A Runner starts sandboxes, and runs turns in them, with the state of one state directory. It is
// safe for concurrent use.
type Runner struct {
	home     *statedir.Dir
	space    *diskspace.Disk // the one with home
	repo     *repo.Repo      // what is kept between turns
	launcher *sandbox.Launcher
	store    *template.Store // with a builder of layers
	opt      Options
	opened   *proxy.Budget // of the connections that sandboxes have opened
}

// context returns the context store, which is opened once.
func (x *Runner) context(ctx context.Context) (*repo.ContextStore, error) { return x.repo.Open(ctx) }

// Run runs one turn and returns it with its receipt. An error without a Turn
// means that nothing was started: of kind Invalid or KindNotFound, that the request
// is wrong. A turn that began always comes back, its Result telling how it ended;
// when ctx is cancelled it is "error" and the receipt says at which step. obs may be nil.
func (x *Runner) Run(ctx context.Context, req plan.Request, obs Observer) (*turnstone.TurnReport,
	error) {
	return x.run(ctx, req, nil, obs)
}

// run is Run. again is the turn that req repeats, if any.
func (x *Runner) run(ctx context.Context, req plan.Request, again *replayOf,
	obs Observer) (*turnstone.TurnReport, error) {
	r, err := x.begin(ctx, req, again, obs)
	if err != nil {
		return nil, err
	}
	defer r.close()
	r.execute(ctx)
	return r.turn(), nil
}

// begin returns the turn that req asks for with its place in its session, before anything is
// started. The caller closes it.
func (x *Runner) begin(ctx context.Context, req plan.Request, again *replayOf, obs Observer) (_ *run, err error) {
	if obs == nil {
		obs = silent{}
	}
	host, err := x.facts()
	if err != nil {
		return nil, err
	}
	a := &plan.Authority{Request: req, Host: host, Replays: again != nil}
	if err := a.Valid(); err != nil { // first: no grant makes it right
		return nil, err
	}
	if err := a.Check(); err != nil {
		return nil, err
	}
	spec, err := x.templatesFor(a.Anonymous()).Resolve(ctx, cmp.Or(req.Image, req.Document.Front.Image, plan.DefaultImage), obs.Preparing)
	if err != nil {
		return nil, err
	}
	p, err := plan.Make(a, spec.Name, spec.Workdir)
	if err != nil {
		return nil, err
	}
	r := &run{x: x, plan: p, again: again, doc: req.Document, clock: newStopwatch()}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err := plan.CheckScripts(ctx, req.Document); err != nil {
		return nil, err
	}
	r.obs = maskedObserver{obs, p.Secrets}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now().UTC(), Image: p.Image, Result: turnstone.ResultError}
	r.openFolder()
	// Also when the caller has given up by now: a turn that was asked for has a receipt.
	if err := r.locate(context.WithoutCancel(ctx)); err != nil {
		_ = os.Remove(r.dir)
		return nil, err
	}
	return r, nil
}

// close frees what the turn holds beside its sandbox.
func (r *run) close() {
	r.snapshot.remove()
	r.closeInputs()
	r.closeFolder()
	r.tape.close()
	r.plan.Close()
}

// locate finds the turn's place in its session, and what follows from it.
func (r *run) locate(ctx context.Context) error {
	cs, err := r.x.context(ctx)
	if err != nil {
		return err
	}
	if r.at, err = take(ctx, cs, r.plan, r.again, r.info.ID, title(r.doc)); err != nil {
		return err
	}
	settled, err := r.plan.On(r.at.below(), r.x.Templates())
	if err == nil {
		r.plan, r.shape = settled, settled.Shape
		r.setup, err = r.openNetwork(ctx)
		r.setup.turn = r.info.ID
	}
	if err != nil {
		r.at.abandon(ctx)
		return err
	}
	r.info.Image = r.plan.Image
	r.info.Session, r.info.Number, r.info.Branch, r.info.Parents = r.at.session.Label(), r.at.turn.Number, r.plan.Branch, r.at.turn.Parents
	r.info.Secrets, r.info.Home = r.plan.Secrets.Names(), r.plan.Home
	r.openSteps()
	r.clock.lap("session")
	return nil
}

// openSteps gets ready what becomes the receipt. The turn's plan and folder are settled.
func (r *run) openSteps() {
	p := r.plan
	r.steps = receipt.New(receipt.Options{Document: r.doc, Secrets: p.Secrets, Cwd: p.Cwd, Commands: p.Commands,
		Dir: r.dir, Shown: "$TURN_HOME/turns/" + string(r.info.ID), Limit: int64(p.Host.Limits.Output), Floor: p.Host.Limits.FreeSpace,
		Image: func(program string) string { return builtin.OtherWithProgram(p.Image, program) }, Output: r.obs.StepOutput})
}

// run is one turn on its way.
type run struct {
	x       *Runner
	plan    *plan.Plan
	again   *replayOf // the turn that this one repeats; nil: none
	setup   setup     // of its sandbox
	doc     *document.Document
	obs     Observer
	clock   *stopwatch
	dir     string // where the turn's files are kept; empty if nowhere
	folder  turnFolder
	info    document.TurnInfo
	hint    string
	kind    turnstone.Kind // of what ended it early
	steps   *receipt.Steps
	receipt []byte // the last one, as it is kept; nil before

	tape                      tape                     // of the network
	network                   *turnstone.RecordNetwork // what is kept
	at                        *branchPoint
	collected                 *collected      // what is to be kept; nil when there is no state
	shape                     turnstone.Shape // of the machine, once there is one
	paused                    *pausedMachine  // the session's machine; nil: the turn has one of its own
	restless                  error           // why it could not be made to stand still
	snapshot                  *vmSnapshot     // the machine as it was at the end; nil: it was not asked for
	added                     []*input        // files that were
	diverged                  bool            // another turn came first: its branch is a new one
	layer                     turnstone.LayerInfo
	recordDigest, stateDigest turnstone.Digest
}

// execute is the turn from end to end. What ends it early is in r.info afterwards.
func (r *run) execute(ctx context.Context) {
	err := r.runInSandbox(ctx)
	r.info.Duration = time.Since(r.info.Started)
	if err != nil {
		r.fail(err)
	}
	r.finish(ctx)
}

// finish keeps the turn, and what it left.
func (r *run) finish(ctx context.Context) {
	// What it did is kept also when the caller has given up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLimitTime)
	defer cancel()
	err := r.commit(ctx, r.collected)
	r.settlePaused(ctx, err == nil && r.collected != nil)
	if err != nil {
		r.fail(turnstone.NewError("executor.keep", turnstone.KindOf(err), "what the turn left is not kept",
			err).WithHint(turnstone.HintOf(err)))
		r.receipt = nil // it says something else now
		r.commitWithoutState()
	}
	if r.receipt == nil {
		r.receipt = r.steps.Receipt(&r.info)
	}
	r.keepReceipt()
	r.clock.lap("keep")
}

// keepLimitTime bounds how long a turn's record may take to be written.
const keepLimitTime = 10 * time.Minute

func (r *run) fail(err error) {
	r.info.Result = turnstone.ResultError
	r.setError(err)
}

// setError keeps what err says.
func (r *run) setError(err error) {
	r.info.Error, r.hint, r.kind = r.maskedLine(err.Error()), r.maskedLine(turnstone.HintOf(err)), turnstone.KindOf(err)
}

// maskedLine is a text about the turn, which may have a guest's words in it, as it may be kept.
func (r *run) maskedLine(s string) string { return brief.Line(r.plan.Secrets.Written().Mask(s)) }

func (r *run) runInSandbox(ctx context.Context) error {
	// Until the first step is reached the receipt on disk says that this was
	// where the executor ended, should it be killed.
	r.info.Error = "the executor ended before the first step"
	r.checkpoint()
	s, err := r.open(ctx)
	if err != nil {
		return sandbox.Interrupted(ctx, err, "while the sandbox was prepared")
	}
	defer func() {
		if r.paused == nil || r.collected == nil { // else the session's machine stands still
			_ = s.Close()
		}
		r.clock.lap("close")
	}()
	r.info.Template, r.info.Substrate, r.info.Isolation, r.info.Machine = s.Template.Digest, s.Substrate(), s.Isolation(), s.Fewer()
	r.beginNetwork(ctx, s)
	timed, cancel := context.WithTimeout(ctx, r.plan.Timeout)
	defer cancel()
	turnCtx, unwatch := r.x.space.Watch(timed, r.plan.Host.Limits.FreeSpace)
	defer unwatch()
	if err := r.addAll(turnCtx, s); err != nil {
		if ctx.Err() == nil && errors.Is(turnCtx.Err(), context.DeadlineExceeded) {
			r.info.Result = turnstone.ResultTimedOut
			r.info.Error = fmt.Sprintf("the turn's %s were up while files were added", r.plan.Timeout)
			return nil
		}
		return sandbox.Interrupted(ctx, err, "while files were added")
	}
	if len(r.plan.Add) > 0 {
		r.clock.lap("add")
	}
	result, err := r.runSteps(ctx, turnCtx, s)
	r.clock.lap("steps")
	if low := diskspace.Low(turnCtx); low != nil && err != nil && s.Err() == nil && !isCancel(ctx) {
		return r.salvage(ctx, s, low)
	}
	if err != nil {
		return err
	}
	missed := s.GetAll(ctx, r.plan.Get, mostToGet(s, r.shape), r.obs.Preparing)
	if missed != nil {
		missed = sandbox.Interrupted(ctx, missed, "while files were fetched")
	}
	if len(r.plan.Get) > 0 {
		r.clock.lap("get")
	}
	r.info.Result, r.info.Error = result, ""
	if s.Err() == nil && !isCancel(ctx) {
		if err := r.collectAll(ctx, s); err != nil {
			return err
		}
	}
	if missed != nil && result != turnstone.ResultPassed && !isCancel(ctx) {
		// What a failed step did not make cannot be fetched: the step is the news.
		r.setError(missed)
		return nil
	}
	return missed
}

// mostToGet bounds the bytes that can be copied out of s: all that there can be, except holes,
// because a sparse file is longer than its disk.
func mostToGet(s *Sandbox, shape turnstone.Shape) turnstone.Bytes {
	return shape.Disk + turnstone.Bytes(s.Template.Size)
}

// noteStateLost says, in the receipt too, that there is no state.
func (r *run) noteStateLost() {
	const what = "what the turn changed is lost with its machine, which did not obey"
	r.obs.Preparing(what)
	r.steps.AddToTimeout(what)
}

// runSteps runs the steps in order. An error means that the turn was cut off.
func (r *run) runSteps(ctx, turnCtx context.Context, s *Sandbox) (turnstone.Result, error) {
	result, reason := turnstone.ResultPassed, ""
	first := true
	for _, step := range r.doc.Steps {
		switch {
		case reason != "":
			r.steps.Skip(step, reason)
			continue
		case step.Skip:
			r.steps.Skip(step, "skipped by its author")
			continue
		}
		running := r.steps.Start(step)
		r.info.Error = "the executor ended during " + step.Name
		r.checkpoint()
		r.obs.StepStarted(step)
		err := r.runStep(turnCtx, s, step, running, first)
		first = false
		r.noteNetwork(ctx, s, running)
		if low := diskspace.Low(turnCtx); err != nil && low != nil {
			err = low // and not what the step's end looked like
		}
		if err != nil {
			err = sandbox.Interrupted(ctx, s.CauseOf(err), "during "+step.Name)
			running.Cut(err)
		}
		r.obs.StepFinished(step, running.Finish())
		if err != nil {
			return turnstone.ResultError, err
		}
		if running.Status() == turnstone.StepPassed {
			continue
		}
		overall := turnCtx.Err() != nil
		if step.ContinueOnError && !overall {
			continue
		}
		result, reason = turnstone.ResultFailed, step.Name+" failed"
		if running.Status() == turnstone.StepTimeout {
			result, reason = turnstone.ResultTimedOut, step.Name+" timed out"
		}
		if overall {
			reason = "the turn's time was up"
		}
	}
	return result, nil
}

// runStep runs one step. An error means that the machine did not tell how the step ended.
func (r *run) runStep(turnCtx context.Context, s *Sandbox, step *document.Step, running *receipt.Step, first bool) error {
	ctx := turnCtx
	if step.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(turnCtx, step.Timeout)
		defer cancel()
	}
	release := s.Guard(ctx)
	params := wire.ShellExecuteParams{Name: step.Name, Language: wire.ShellExecuteLanguage(step.Language), User: s.Template.User}
	if first {
		params.Cwd = r.plan.Cwd
	}
	if step.Cwd != "" {
		params.Cwd = plan.InCwd(r.plan.Cwd, step.Cwd)
	}
	params.Spans = new(bool) // the script is parsed here
	end, err := s.Client().Execute(ctx, params, step.Script, running.Begin(), running.Records)
	release() // what follows takes the host's time, not the guest's
	running.End(end)
	exit := end.Exit
	deadline := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if deadline && (err != nil || exit.Killed) {
		running.TimedOut(r.timeoutNote(turnCtx, step))
		if err != nil && turnstone.KindOf(err) == turnstone.KindDead && s.Err() == nil {
			return turnstone.Errorf("executor.step", turnstone.KindDead, step.Name,
				"could not be killed in time; its machine was")
		} else if err != nil && turnstone.KindOf(err) == turnstone.KindDead {
			return err
		}
		return nil
	}
	if err == nil && exit.Killed {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	running.Exited(end)
	return nil
}

func (r *run) timeoutNote(turnCtx context.Context, step *document.Step) string {
	if turnCtx.Err() != nil {
		return fmt.Sprintf("killed: the turn's %s were up", r.plan.Timeout)
	}
	return fmt.Sprintf("killed after %s", step.Timeout)
}

func (r *run) turn() *turnstone.TurnReport {
	return &turnstone.TurnReport{ID: r.info.ID, Result: r.info.Result, Error: r.info.Error,
		Hint: r.hint, Kind: r.kind,
		Substrate: r.info.Substrate, Isolation: r.info.Isolation, Machine: r.info.Machine, Template: r.info.Template, Image: r.info.Image,
		Started: r.info.Started, Duration: r.info.Duration, Millis: r.info.Duration.Milliseconds(),
		Session: r.info.Session, Number: r.info.Number, Branch: r.info.Branch, Diverged: r.diverged, Parents: r.info.Parents,
		Start: r.info.Start, FSHash: r.info.FSHash, State: r.stateDigest, Record: r.recordDigest, Layer: &r.layer,
		Network: r.network, Phases: r.clock.phases, Receipt: string(r.receipt), Steps: r.steps.Reports()}
}

// A maskedObserver tells what is told of a turn without its secrets. What steps
// print comes to it masked.
type maskedObserver struct {
	Observer
	secrets *secret.Set
}

// Preparing implements Observer.
func (o maskedObserver) Preparing(what string) {
	o.Observer.Preparing(o.secrets.Written().Mask(what))
}
