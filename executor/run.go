package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/wire"
)

// An Executor runs turns with the state of one home. It is safe for concurrent use.
type Executor struct{ *Host }

// A Host starts sandboxes.
type Host struct {
	home     *statedir.Dir
	space    *diskspace.Disk // the one with home
	repo     *Repo           // what is kept between turns
	launcher *sandbox.Launcher
	opened   *proxy.Budget // of the connections that sandboxes have opened
}

// New returns an executor on h.
func New(h *statedir.Dir) *Executor {
	x := &Host{home: h, space: diskspace.New(h.Root), launcher: sandbox.New(h),
		opened: proxy.NewBudget(proxy.DefaultBudget)}
	x.repo = newRepo(h, x.templates)
	return &Executor{Host: x}
}

// templates returns the templates, with what builds their layers.
func (x *Host) templates() *template.Store {
	return template.NewStore(x.home.Path("templates")).WithLayers(layerBuilder{x})
}

// context returns the context store, which is opened once.
func (x *Host) context(ctx context.Context) (*contextStore, error) { return x.repo.context(ctx) }

// Run runs one turn and returns it with its receipt. An error without a Turn
// means that nothing was started: of kind Invalid or KindNotFound, that the request
// is wrong. A turn that began always comes back, its Result telling how it ended;
// when ctx is cancelled it is "error" and the receipt says at which step.
func (x *Executor) Run(ctx context.Context, req Request, obs Observer) (*Turn, error) {
	r, err := x.begin(ctx, req, obs)
	if err != nil {
		return nil, err
	}
	defer r.close()
	r.execute(ctx)
	return r.turn(), nil
}

// begin returns the turn that req asks for with its place in its session, before anything is
// started. The caller closes it.
func (x *Executor) begin(ctx context.Context, req Request, obs Observer) (_ *run, err error) {
	host, err := x.config()
	if err != nil {
		return nil, err
	}
	a := &authority{req: req, host: host}
	if err := a.valid(); err != nil { // first: no grant makes it right
		return nil, err
	}
	if err := a.check(); err != nil {
		return nil, err
	}
	spec, err := x.templatesFor(a.anonymous()).Resolve(ctx, cmp.Or(req.Image, req.Document.Front.Image, DefaultImage), obs.Preparing)
	if err != nil {
		return nil, err
	}
	p, err := planTurn(req, spec.Workdir)
	if err != nil {
		return nil, err
	}
	r := &run{x: x, plan: p, doc: req.Document, clock: newStopwatch()}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	p.image, p.authority, p.anonymous = spec.Name, a, a.anonymous() // of an image of a registry, with the digest
	if err := x.admit(p); err != nil {
		return nil, err
	}
	if err := x.planNetwork(p, req); err != nil {
		return nil, err
	}
	if err := CheckScripts(ctx, req.Document); err != nil {
		return nil, err
	}
	r.obs = maskedObserver{obs, p.secrets}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now().UTC(), Image: p.image, Result: turnstone.ResultError}
	r.results = make([]document.StepResult, len(req.Document.Steps))
	for i := range r.results {
		r.results[i] = document.StepResult{Status: turnstone.StepSkipped, Note: "not reached"}
	}
	r.scripts, r.commands = parseScripts(req.Document, p.secrets.Written()), make([]*commands, len(req.Document.Steps))
	r.outputs, r.networks = make([][2]*capture, len(req.Document.Steps)), make([]*turnstone.NetworkReport, len(req.Document.Steps))
	r.cwd, r.table = p.cwd, req.Commands
	r.openFolder()
	p.turn = r.info.ID
	// Also when the caller has given up by now: a turn that was asked for has a receipt.
	if err := r.locate(context.WithoutCancel(ctx), req); err != nil {
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
	r.plan.net.spool.close()
	r.plan.close()
}

// locate finds the turn's place in its session, and what follows from it.
func (r *run) locate(ctx context.Context, req Request) error {
	cs, err := r.x.context(ctx)
	if err != nil {
		return err
	}
	if r.at, err = take(ctx, cs, r.plan, r.info.ID, title(r.doc)); err != nil {
		return err
	}
	if err = r.at.inherit(r.plan, req); err == nil {
		err = r.openNetwork(ctx)
	}
	if err != nil {
		r.at.abandon(ctx)
		return err
	}
	r.cwd, r.info.Image = r.plan.cwd, r.plan.image
	r.info.Session, r.info.Number, r.info.Branch, r.info.Parents = r.at.session.Label(), r.at.turn.Number, r.plan.branch, r.at.turn.Parents
	r.info.Secrets, r.info.Home = r.plan.secrets.Names(), r.plan.home
	r.clock.lap("session")
	return nil
}

// run is one turn on its way.
type run struct {
	x       *Executor
	plan    *plan
	doc     *document.Document
	obs     Observer
	clock   *stopwatch
	dir     string // where the turn's files are kept; empty if nowhere
	folder  turnFolder
	info    document.TurnInfo
	hint    string
	kind    turnstone.Kind // of what ended it early
	results []document.StepResult

	outputs                   [][2]*capture // by step: standard output and error
	scripts                   *scripts
	commands                  []*commands                // by step; nil for one that did not run
	networks                  []*turnstone.NetworkReport // by step; nil for one that did nothing on it
	netTotals                 network.Totals             // when the last step ended
	network                   *RecordNetwork             // what is kept
	at                        *branchPoint
	collected                 *collected     // what is to be kept; nil when there is no state
	paused                    *pausedMachine // the session's machine; nil: the turn has one of its own
	restless                  error          // why it could not be made to stand still
	snapshot                  *vmSnapshot    // the machine as it was at the end; nil: it was not asked for
	added                     []*input       // files that were
	diverged                  bool           // another turn came first: its branch is a new one
	layer                     LayerInfo
	recordDigest, stateDigest turnstone.Digest
	cwd                       string // where the next step begins
	table                     bool   // the receipt lists all commands
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
		r.commitWithoutState()
	}
	r.keepReceipt(true)
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
func (r *run) maskedLine(s string) string { return oneLine(r.plan.secrets.Written().Mask(s)) }

func (r *run) runInSandbox(ctx context.Context) error {
	// Until the first step is reached the receipt on disk says that this was
	// where the executor ended, should it be killed.
	r.info.Error = "the executor ended before the first step"
	r.keepReceipt(false)
	s, err := r.open(ctx)
	if err != nil {
		return interrupted(ctx, err, "while the sandbox was prepared")
	}
	defer func() {
		if r.paused == nil || r.collected == nil { // else the session's machine stands still
			_ = s.Close()
		}
		r.clock.lap("close")
	}()
	r.info.Template, r.info.Substrate, r.info.Isolation, r.info.Machine = s.Template.Digest, s.Substrate(), s.Isolation(), s.Fewer()
	r.beginNetwork(ctx, s)
	timed, cancel := context.WithTimeout(ctx, r.plan.timeout)
	defer cancel()
	turnCtx, unwatch := r.x.space.Watch(timed, r.plan.limits.FreeSpace)
	defer unwatch()
	if err := r.addAll(turnCtx, s); err != nil {
		if ctx.Err() == nil && errors.Is(turnCtx.Err(), context.DeadlineExceeded) {
			r.info.Result = turnstone.ResultTimedOut
			r.info.Error = fmt.Sprintf("the turn's %s were up while files were added", r.plan.timeout)
			return nil
		}
		return interrupted(ctx, err, "while files were added")
	}
	if len(r.plan.add) > 0 {
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
	missed := s.GetAll(ctx, r.plan.get, r.plan.mostToGet(s), r.obs.Preparing)
	if missed != nil {
		missed = interrupted(ctx, missed, "while files were fetched")
	}
	if len(r.plan.get) > 0 {
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

// noteStateLost says, in the receipt too, that there is no state.
func (r *run) noteStateLost() {
	const what = "what the turn changed is lost with its machine, which did not obey"
	r.obs.Preparing(what)
	for i := len(r.results) - 1; i >= 0; i-- {
		if res := &r.results[i]; res.Status == turnstone.StepTimeout {
			res.Note += "; " + what
			return
		}
	}
}

// runSteps runs the steps in order. An error means that the turn was cut off.
func (r *run) runSteps(ctx, turnCtx context.Context, s *Sandbox) (turnstone.Result, error) {
	result, reason := turnstone.ResultPassed, ""
	first := true
	for i, step := range r.doc.Steps {
		res := &r.results[i]
		switch {
		case reason != "":
			res.Note = reason
			continue
		case step.Skip:
			res.Note = "skipped by its author"
			continue
		}
		res.Status = turnstone.StepError
		res.Note = "the executor ended during this step"
		r.info.Error = "the executor ended during " + step.Name
		r.keepReceipt(false)
		r.obs.StepStarted(step)
		err := r.runStep(turnCtx, s, step, res, first)
		first = false
		r.noteNetwork(ctx, s, step, res)
		r.noteImage(step, res)
		if low := diskspace.Low(turnCtx); err != nil && low != nil {
			err = low // and not what the step's end looked like
		}
		if err != nil {
			err = interrupted(ctx, s.CauseOf(err), "during "+step.Name)
			res.Note = r.maskedLine(err.Error())
		}
		r.scrub(step, res)
		r.obs.StepFinished(step, r.report(step, *res))
		if err != nil {
			return turnstone.ResultError, err
		}
		if res.Status == turnstone.StepPassed {
			continue
		}
		overall := turnCtx.Err() != nil
		if step.ContinueOnError && !overall {
			continue
		}
		result, reason = turnstone.ResultFailed, step.Name+" failed"
		if res.Status == turnstone.StepTimeout {
			result, reason = turnstone.ResultTimedOut, step.Name+" timed out"
		}
		if overall {
			reason = "the turn's time was up"
		}
	}
	return result, nil
}

// runStep runs one step and fills res. An error means that the machine did not tell
// how the step ended.
func (r *run) runStep(turnCtx context.Context, s *Sandbox, step *document.Step, res *document.StepResult, first bool) error {
	ctx := turnCtx
	if step.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(turnCtx, step.Timeout)
		defer cancel()
	}
	release := s.Guard(ctx)
	stdout, stderr := r.capture(step, turnstone.Stdout, "stdout"), r.capture(step, turnstone.Stderr, "stderr")
	params := wire.ShellExecuteParams{Name: step.Name, Language: wire.ShellExecuteLanguage(step.Language), User: s.Template.User}
	if first {
		params.Cwd = r.plan.cwd
	}
	if step.Cwd != "" {
		params.Cwd = inCwd(r.plan.cwd, step.Cwd)
	}
	began := time.Now()
	params.Spans = new(bool) // the script is parsed here
	var records []wire.ShellRecord
	maskOut, maskErr := r.plan.secrets.Written().Writer(stdout), r.plan.secrets.Written().Writer(stderr)
	clock := newGuestClock(began)
	end, err := s.Client().Execute(ctx, params, step.Script, wire.Stdio{Out: maskOut, Err: maskErr}, func(more []wire.ShellRecord) {
		clock.told(more)
		if len(records)+len(more) <= trace.MaxRecords {
			records = append(records, more...)
		}
	})
	release() // what follows takes the host's time, not the guest's
	exit := end.Exit
	end.Env = nil // up to 16 MiB, which nobody here asks for
	res.Duration = time.Since(began)
	_, _ = maskOut.Close(), maskErr.Close() // a capture takes everything
	res.Stdout, res.Stderr = stdout.finish(), stderr.finish()
	r.outputs[step.Index-1] = [2]*capture{stdout, stderr}
	if end.Path != "" {
		defer func() {
			c := r.note(step, end, records, stderr, res)
			c.zero, r.commands[step.Index-1] = clock.zero(), c
		}()
	}
	deadline := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if deadline && (err != nil || exit.Killed) {
		res.Status, res.Note = turnstone.StepTimeout, r.timeoutNote(turnCtx, step)
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
	code := int(exit.ExitCode)
	res.ExitCode, res.Status, res.Note = &code, turnstone.StepPassed, r.maskedLine(exitNote(end))
	if code != 0 {
		res.Status = turnstone.StepFailed
	}
	return nil
}

// note keeps what is known of a step's commands.
func (r *run) note(step *document.Step, end *wire.StepEnd, records []wire.ShellRecord, stderr *capture, res *document.StepResult) *commands {
	c := r.scripts.analyse(step, end, records, stderr, r.cwd, r.table)
	res.Failures = c.shown
	if r.table {
		res.Commands, res.CommandsNote = c.table, c.note
	}
	if end.Cwd != "" && !end.StateLost {
		r.cwd = end.Cwd
	}
	return c
}

func (r *run) timeoutNote(turnCtx context.Context, step *document.Step) string {
	if turnCtx.Err() != nil {
		return fmt.Sprintf("killed: the turn's %s were up", r.plan.timeout)
	}
	return fmt.Sprintf("killed after %s", step.Timeout)
}

func exitNote(end *wire.StepEnd) string {
	var notes []string
	e := end.Exit
	if e.Signal != "" {
		notes = append(notes, "ended by "+oneLine(e.Signal))
	}
	if e.OOMKilled {
		notes = append(notes, "out of memory: the sandbox's limit killed a process (more with memory:)")
	}
	if e.DiskFull {
		notes = append(notes, "the sandbox's disk is full (more with disk:)")
	}
	if end.StateLost {
		notes = append(notes, "its environment and directory are not carried over")
	}
	return strings.Join(notes, "; ")
}

func (r *run) capture(step *document.Step, stream turnstone.Stream, name string) *capture {
	c := newCapture(r.dir, "$TURN_HOME/turns/"+string(r.info.ID), fmt.Sprintf("step-%d.%s", step.Index, name),
		func(p []byte) { r.obs.StepOutput(step, stream, p) })
	c.scan = r.plan.secrets.Scanner()
	c.limit, c.floor = int64(r.plan.limits.Output), r.plan.limits.FreeSpace
	return c
}

// interrupted names the place where ctx's end cut a turn off.
func interrupted(ctx context.Context, err error, where string) error {
	if !isCancel(ctx) {
		return err
	}
	return turnstone.NewError("executor.run", turnstone.KindCanceled, "interrupted",
		errors.New(where))
}

func (r *run) turn() *Turn {
	receipt := string(r.receipt()) // first: what must not be in it is not in the rest either
	t := &Turn{ID: r.info.ID, Result: r.info.Result, Error: r.info.Error, Hint: r.hint, Kind: r.kind,
		Substrate: r.info.Substrate, Isolation: r.info.Isolation, Machine: r.info.Machine, Template: r.info.Template, Image: r.info.Image,
		Started: r.info.Started, Duration: r.info.Duration, Millis: r.info.Duration.Milliseconds(),
		Session: r.info.Session, Number: r.info.Number, Branch: r.info.Branch, Diverged: r.diverged, Parents: r.info.Parents,
		Start: r.info.Start, FSHash: r.info.FSHash, State: r.stateDigest, Record: r.recordDigest, Layer: &r.layer,
		Network: r.network, Phases: r.clock.phases, Receipt: receipt, Steps: []turnstone.StepReport{}}
	for i, step := range r.doc.Steps {
		t.Steps = append(t.Steps, r.report(step, r.results[i]))
	}
	return t
}

func (r *run) report(step *document.Step, res document.StepResult) turnstone.StepReport {
	rep := turnstone.StepReport{Name: step.Name, Line: step.Line, Status: res.Status, ExitCode: res.ExitCode,
		Millis: res.Duration.Milliseconds(), Note: res.Note}
	rep.Stdout, rep.StdoutInfo = describe(res.Stdout)
	rep.Stderr, rep.StderrInfo = describe(res.Stderr)
	rep.Network = r.networks[step.Index-1]
	if c := r.commands[step.Index-1]; c != nil {
		rep.Commands, rep.Failures = c.reports, c.failures
		rep.CommandCount, rep.CommandsDropped, rep.Untraced = max(c.report.Commands, int64(len(c.reports))), c.report.Dropped, c.report.Untraced
	}
	return rep
}

func describe(o document.Output) (string, turnstone.OutputInfo) {
	text, cut := o.Text()
	return text, turnstone.OutputInfo{Bytes: o.Size, Digest: o.Digest, Truncated: cut, File: o.File}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

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
