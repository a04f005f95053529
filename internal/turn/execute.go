package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/turn/paused"
	"turnstone.dev/turnstone/internal/turn/snapshot"
	"turnstone.dev/turnstone/internal/turn/state"
)

// execute runs the turn's steps in a sandbox and returns the resulting state, or nil if there is
// none. left may be set together with an error.
func (r *run) execute(ctx context.Context) (left *state.Collected, err error) {
	// If the executor is killed before the first step, the receipt on disk must say so.
	r.info.Error = beforeFirst
	r.checkpoint()
	s, err := r.open(ctx)
	if sandbox.TimeUp(err) && ctx.Err() == nil {
		r.info.Result, r.info.Error = turnstone.ResultTimedOut, r.steps.Cause(err)
		return nil, nil
	}
	if err != nil {
		return nil, sandbox.Interrupted(ctx, err, "while the sandbox was prepared")
	}
	defer func() {
		// Otherwise the session's machine is paused, or already about to end.
		if (r.paused == nil || left == nil) && !(left != nil && s.Leaving()) {
			_ = s.Close()
		}
		r.clock.Lap("close")
	}()
	r.info.Template, r.info.Machine = s.Template.Digest, s.Fewer()
	r.info.Substrate, r.info.Isolation = s.Substrate(), s.Isolation()
	r.origin = s.Origin()
	r.beginNetwork(ctx, s)
	timed, cancel := context.WithTimeout(ctx, r.timeLeft())
	defer cancel()
	turnCtx, diskLow, unwatch := r.host.Watch(timed, r.plan)
	defer unwatch()
	if err := r.inputs.Put(turnCtx, s, r.at.Context.Store); err != nil {
		if ctx.Err() == nil && errors.Is(turnCtx.Err(), context.DeadlineExceeded) {
			r.info.Result = turnstone.ResultTimedOut
			r.info.Error = fmt.Sprintf("the turn's %s were up while files were added",
				r.plan.Timeout)
			return nil, nil
		}
		return nil, sandbox.Interrupted(ctx, err, "while files were added")
	}
	if len(r.plan.Add) > 0 {
		r.clock.Lap("add")
	}
	if err := r.keepStart(ctx); err != nil {
		return nil, err
	}
	result, err := r.runSteps(ctx, turnCtx, diskLow, s)
	r.clock.Lap("steps")
	if low := diskLow(); low != nil && err != nil && s.Err() == nil && !canceled(ctx) {
		return r.salvage(ctx, s, low)
	}
	if err != nil {
		return nil, err
	}
	missed := r.getAll(ctx, s)
	if r.info.Result, r.info.Error = result, ""; len(r.plan.Get) > 0 {
		r.clock.Lap("get")
	}
	if s.Err() == nil && !canceled(ctx) {
		if left, err = r.collectAll(ctx, s); err != nil {
			return nil, err
		}
	}
	if missed != nil && result != turnstone.ResultPassed && !canceled(ctx) {
		// A failed step explains the missing file, so the step's failure is reported.
		r.setError(missed)
		return left, nil
	}
	return left, missed
}

// noteStateLost records, in the receipt too, that the turn left no state.
func (r *run) noteStateLost() {
	const what = "the turn's changes are lost with its machine, which did not obey"
	r.obs.Preparing(what)
	r.steps.AddToTimeout(what)
}

// getAll copies the files that the plan requests out of the sandbox.
func (r *run) getAll(ctx context.Context, s *sandbox.Sandbox) error {
	err := s.GetAll(ctx, r.plan.Get, s.MostToGet(r.shape), r.obs.Preparing)
	if err != nil {
		err = sandbox.Interrupted(ctx, err, "while files were fetched")
	}
	return err
}

// open creates the turn's sandbox on its initial state.
func (r *run) open(ctx context.Context) (*sandbox.Sandbox, error) {
	var again turnstone.TurnID
	if r.again != nil {
		again = r.again.Of
	}
	home, err := provision.OpenHome(ctx, r.host, r.setup, again, r.obs.Preparing)
	if err != nil {
		return nil, err
	}
	if r.setup.Home = home; home != nil {
		r.info.Home, r.info.HomeBegan = home.Name, home.Began.Hash
	}
	su := r.setup
	su.Env = slices.Concat(su.Env, r.plan.Secrets.Env())
	if r.strict() {
		su.Script = r.inputs.Script(r.at.Context.Store, r.scripted)
	}
	r.info.Start = "the template"
	if r.at.Parent != nil {
		r.info.Start = fmt.Sprintf("turn %d", r.at.Parent.Number)
	}
	if r.plan.Lifetime != turnstone.LifetimeSession {
		if r.skipsPaused() {
			r.obs.Preparing("the session's paused machine is not used: " +
				"this turn has lifetime: turn")
		}
		_, base := r.startsOn()
		if r.again == nil && r.from == nil && !r.at.Replay {
			su.Ahead = provision.AheadOf(ctx, r.plan, base, r.at.Session.ID)
			r.setup.Ahead = su.Ahead
		}
		return provision.Start(ctx, r.host, su, base, r.obs.Preparing, r.clock)
	}
	o, err := paused.Open(ctx, r.host, paused.Turn{Setup: su, At: r.at.Base, Session: r.at.Session,
		Start: r.info.Start, Tell: r.obs.Preparing, Clock: r.clock})
	r.info.Start, r.shape = o.Start, o.Shape
	if r.paused = o.Machine; r.paused != nil {
		r.info.Lifetime = turnstone.LifetimeSession
	}
	return o.Sandbox, err
}

// skipsPaused reports whether the session has a paused machine with the turn's initial state
// although the turn has a sandbox of its own.
func (r *run) skipsPaused() bool {
	return !r.at.Replay && r.at.Parent != nil &&
		paused.StandsOn(r.host, r.at.Session.ID, r.plan.Branch, r.at.Parent.ID)
}

// settlePaused ends the turn's use of the session's machine. The machine remains if stays is set:
// then the branch's next turn starts from this turn. If the turn had a sandbox of its own, the
// machine with its parent's state is useless, and settlePaused ends it.
func (r *run) settlePaused(ctx context.Context, stays bool) {
	if r.paused != nil {
		r.paused.Settle(ctx, r.info.ID, stays, r.obs.Preparing)
		return
	}
	if stays && r.skipsPaused() {
		_ = paused.End(ctx, r.host, r.at.Session.ID, r.plan.Branch) // GC removes the remains
	}
}

// collectAll collects the turn's data from the sandbox after the steps: its machine, if requested,
// and its files, even if the machine cannot be kept.
func (r *run) collectAll(ctx context.Context, s *sandbox.Sandbox) (*state.Collected, error) {
	var unkept error
	if r.plan.Snapshot == document.SnapshotVM {
		if r.snapshot, unkept = snapshot.Take(ctx, r.host.Dir, r.at.Context, s); unkept == nil {
			r.info.Snapshot = document.SnapshotVM
		} else if canceled(ctx) {
			return nil, sandbox.Interrupted(ctx, unkept, "while its machine was kept")
		}
		r.clock.Lap("snapshot")
	}
	left, unpaused, err := r.collect(ctx, s, 1)
	if r.clock.Lap("collect"); unkept == nil {
		unkept = unpaused
	}
	switch {
	case err != nil && turnstone.KindOf(err) == turnstone.KindDead && s.Ended() &&
		r.info.Result != turnstone.ResultPassed:
		// Only the end of the machine could end the step, so the step's changes are lost.
		r.noteStateLost()
		left = nil
	case err != nil && unkept != nil:
		return nil, fmt.Errorf("%w; nor are its files: %w", snapshotError(unkept), err)
	case err != nil:
		return nil, sandbox.Interrupted(ctx, err, "while the turn's changes were collected")
	}
	if unkept != nil {
		r.dropSnapshot(unkept)
	}
	return left, nil
}

// collect collects the state of the sandbox s, whose steps have ended, into a new batch. The
// machine ends unless it is the session's; unpaused is the reason why the session's machine could
// not be paused. parts is as in host.Bounds.
func (r *run) collect(ctx context.Context, s *sandbox.Sandbox, parts uint64) (left *state.Collected,
	unpaused, err error) {
	return r.collectWith(ctx, s, parts, nil)
}

// collectWith is collect with pause in place of the machine's end; nil: as the turn's plan says.
func (r *run) collectWith(ctx context.Context, s *sandbox.Sandbox, parts uint64,
	pause state.Pause) (left *state.Collected, unpaused, err error) {
	req := state.Request{Image: r.plan.Image, Store: r.at.Context.Store,
		Templates: r.host.Templates,
		Parent:    r.at.State, Home: r.setup.Home, Secrets: r.plan.Secrets, Bounds: r.host.Bounds(r.plan, parts),
		Inherited: r.setup.Link.Inherited, Tell: r.obs.Preparing,
		Soon: !r.tape.Recording()} // the end of a recording is the network's
	switch {
	case r.done != nil:
		req.Base, req.Pause = r.done.Base, r.done.Pause
	case r.paused != nil:
		req.Base, req.Pause = r.paused.Base, r.paused.Pause
	default:
		req.Base, req.Pause = r.below(), pause
	}
	if req.Base == (turnstone.TreeRef{}) && r.at.Context.Sealed() { // the template is public
		if req.Base, err = r.at.Context.TemplateTree(ctx, s.Template); err != nil {
			return nil, nil, err
		}
	}
	left, unpaused, err = state.Collect(ctx, s, req)
	if r.paused != nil && left != nil {
		r.paused.Base = left.Base
	}
	return left, unpaused, err
}

// salvage collects the steps' changes until the host's disk was nearly full, if there is space for
// them. It returns the reason why the turn ended.
func (r *run) salvage(ctx context.Context, s *sandbox.Sandbox, low error) (*state.Collected,
	error) {
	left, _, err := r.collect(ctx, s, 2) // the other half of the space is for others
	r.clock.Lap("collect")
	if err != nil {
		return nil, turnstone.Errorf("executor.space", turnstone.KindExhausted, "",
			"%w; the turn's changes are not kept: %w", low, err).WithHint(turnstone.HintOf(low))
	}
	return left, low
}

// dropSnapshot records that the turn's machine is not kept, and the reason. The turn's files are
// kept.
func (r *run) dropSnapshot(err error) {
	r.snapshot.Remove()
	r.snapshot, r.info.Snapshot, r.info.Lifetime = nil, "", ""
	if err = snapshotError(err); r.info.Result != turnstone.ResultPassed {
		if r.info.Error == "" { // the step's error takes precedence
			r.setError(err)
		}
		return
	}
	r.fail(err)
}

func snapshotError(err error) error {
	return turnstone.NewError("executor.keep", turnstone.KindOf(err), "its machine is not kept",
		err).WithHint(turnstone.HintOf(err))
}

// putMachine adds the turn's machine to the store. If that fails, the turn is stored without its
// machine.
func (r *run) putMachine(ctx context.Context) error {
	if r.snapshot == nil {
		return nil
	}
	if err := r.snapshot.Put(ctx, r.at.Context.Store); err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.dropSnapshot(err)
	}
	return nil
}
