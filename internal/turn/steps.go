package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/turn/inputs"
	"turnstone.dev/turnstone/wire"
)

// runSteps runs the steps in order. An error means that the turn was interrupted.
func (r *run) runSteps(ctx, turnCtx context.Context, diskLow func() error, s *sandbox.Sandbox) (
	turnstone.Result, error) {
	result, reason := turnstone.ResultPassed, ""
	first := true
	for _, step := range r.doc.Steps {
		switch {
		case r.kept != nil && step.Index <= r.kept.step:
			continue // it finished before the turn was resumed
		case reason != "":
			r.steps.Skip(step, reason)
			continue
		case step.Skip:
			r.steps.Skip(step, "skipped by its author")
			continue
		}
		if err := r.keepSteps(ctx, s, step, !first); err != nil {
			return turnstone.ResultError, err
		}
		running := r.steps.Start(step)
		r.info.Error = "the executor ended during " + step.Name
		r.checkpoint()
		r.obs.StepStarted(step)
		err := r.runStep(turnCtx, s, step, running, first)
		first = false
		r.noteNetwork(ctx, s, running)
		if low := diskLow(); err != nil && low != nil {
			err = low // the reason takes precedence over the step's result
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

// runStep runs one step. An error means that the step's outcome is unknown.
func (r *run) runStep(turnCtx context.Context, s *sandbox.Sandbox, step *document.Step,
	running *receipt.Step, first bool) error {
	ctx := turnCtx
	if step.Timeout > 0 && !r.strict() { // otherwise the guest has ended the step
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(turnCtx, step.Timeout)
		defer cancel()
	}
	release := s.Guard(ctx)
	params := r.stepParams(step, s.Template.User, first)
	end, err := s.Client().Execute(ctx, params, step.Script, running.Begin(), running.Records)
	release() // the following work takes time of the host, not of the guest
	running.End(end)
	exit := end.Exit
	if r.strict() {
		running.Took(time.Duration(exit.Duration))
	}
	// In a deterministic machine only the time limit kills a step.
	deadline := errors.Is(ctx.Err(), context.DeadlineExceeded) || r.strict() && exit.Killed
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

// stepParams returns the parameters of a step. first is the first step that runs.
func (r *run) stepParams(step *document.Step, user string, first bool) wire.ShellExecuteParams {
	params := wire.ShellExecuteParams{Name: step.Name,
		Language: wire.ShellExecuteLanguage(step.Language), User: user}
	if first {
		on, _ := r.startsOn()
		params.Cwd = on.Cwd
	}
	if step.Cwd != "" {
		params.Cwd = plan.InCwd(r.plan.Cwd, step.Cwd)
	}
	params.Spans = new(bool) // the host parses the script
	return params
}

// strict reports whether the steps run before the host is connected to their machine.
func (r *run) strict() bool {
	return r.plan.Determinism != nil && r.plan.Determinism.Tier == turnstone.TierStrict
}

// scripted returns the steps for the script of a deterministic machine.
func (r *run) scripted(user string) (steps []inputs.Step) {
	for _, step := range r.doc.Steps {
		if step.Skip {
			continue
		}
		steps = append(steps, inputs.Step{Params: r.stepParams(step, user, len(steps) == 0),
			Text: step.Script, Timeout: step.Timeout, Continue: step.ContinueOnError})
	}
	return steps
}

func (r *run) timeoutNote(turnCtx context.Context, step *document.Step) string {
	if turnCtx.Err() != nil {
		return fmt.Sprintf("killed: the turn's %s were up", r.plan.Timeout)
	}
	return fmt.Sprintf("killed after %s", step.Timeout)
}

// beginNetwork discards the network facts from before the first step: a session's machine has
// served other turns.
func (r *run) beginNetwork(ctx context.Context, s *sandbox.Sandbox) {
	if !r.shape.Network {
		return
	}
	if f, ok := s.TakeNetwork(ctx); ok {
		r.steps.BeginNetwork(f.Totals)
	}
}

// noteNetwork adds a step's network activity to its result.
func (r *run) noteNetwork(ctx context.Context, s *sandbox.Sandbox, step *receipt.Step) {
	if !r.shape.Network {
		return
	}
	if f, ok := s.TakeNetwork(ctx); ok {
		step.Network(f)
	}
}
