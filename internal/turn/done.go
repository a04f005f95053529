package turn

import (
	"context"
	"io"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/turn/state"
	"turnstone.dev/turnstone/wire"
)

// Done is work that was done in a sandbox outside of a turn, to be kept as a turn.
type Done struct {
	On      turnstone.TurnID // the turn whose state the work began with; empty: the template
	Start   string           // the same, as the receipt describes it
	Since   time.Time
	Sandbox *sandbox.Sandbox
	Base    turnstone.TreeRef // the tree below the sandbox's disk; zero: the template's
	Pause   state.Pause       // returns the sandbox's changes
	Steps   []DoneStep        // the results of the document's steps
	// Last keeps the turn without a state if the sandbox's files cannot be kept.
	Last bool
}

// A DoneStep is the result of a step of Done.
type DoneStep struct {
	Began  time.Time
	Took   time.Duration
	Exit   *wire.ProcessExit // nil: its end is unknown
	Killed bool              // at the step's time limit
	Note   string            // why Exit is nil, or a further note
	Stdout DoneOutput
	Stderr DoneOutput
}

// A DoneOutput is an output of a step.
type DoneOutput struct {
	Path    string // the file with its beginning, in which secrets are masked; empty: none
	Missing string // what the file does not have; empty: nothing
}

// Keep stores work as a turn: req is the request of a turn whose document has the work's steps, and
// which nobody has to run. Without Last, nothing is stored after an error. The report is nil if there
// is nothing to keep: the document has no steps, and no file was changed.
func (x *Runner) Keep(ctx context.Context, req plan.Request, done *Done, obs Observer) (
	*turnstone.TurnReport, error) {
	r, err := x.begin(ctx, req, nil, done, "", obs)
	if err != nil {
		return nil, err
	}
	defer r.close()
	left, err := r.keepDone(ctx)
	r.info.Duration = time.Since(r.info.Started)
	if err == nil && len(r.doc.Steps) == 0 && left.Layer.Digest == "" {
		_ = left.Batch.Close()
		r.forget(ctx)
		return nil, nil
	}
	if done.Last {
		if err != nil {
			r.fail(err)
		}
		return r.report(r.finish(ctx, left)), nil
	}
	if err == nil {
		// The lease of the turn must not end with the caller's patience.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLimitTime)
		defer cancel()
		var c committed
		if c, err = r.commit(ctx, left); err == nil {
			r.settlePaused(ctx, !c.diverged)
			r.keepReceipt(c.receipt)
			return r.report(c), nil
		}
	}
	r.forget(ctx)
	return nil, err
}

// forget removes the traces of a turn that is not kept.
func (r *run) forget(ctx context.Context) {
	r.at.Abandon(ctx)
	r.folder.Remove()
}

// keepDone takes over the results of the steps, and collects the state.
func (r *run) keepDone(ctx context.Context) (*state.Collected, error) {
	s := r.done.Sandbox
	r.info.Template, r.info.Machine = s.Template.Digest, s.Fewer()
	r.info.Substrate, r.info.Isolation = s.Substrate(), s.Isolation()
	r.info.Start, r.origin, r.shape = r.done.Start, s.Origin(), s.Shape()
	r.info.Result = turnstone.ResultPassed
	if len(r.doc.Steps) != len(r.done.Steps) {
		return nil, turnstone.Errorf("executor.keep", turnstone.KindInternal, r.doc.Name,
			"it has %d steps, and there are %d results", len(r.doc.Steps), len(r.done.Steps))
	}
	for i, step := range r.doc.Steps {
		running, d := r.steps.Start(step), &r.done.Steps[i]
		out := running.Begin()
		for _, o := range []struct {
			to   io.Writer
			from DoneOutput
		}{{out.Out, d.Stdout}, {out.Err, d.Stderr}} {
			if err := copyOutput(o.to, o.from.Path); err != nil {
				return nil, err
			}
		}
		end := &wire.StepEnd{}
		running.End(end)
		running.Began(d.Began)
		running.Took(d.Took)
		switch {
		case d.Exit == nil:
			running.Unknown(d.Note)
		case d.Killed:
			running.TimedOut(d.Note)
		default:
			end.Exit = *d.Exit
			running.Exited(end)
			running.Note(d.Note)
		}
		running.Lacks(turnstone.Stdout, d.Stdout.Missing)
		running.Lacks(turnstone.Stderr, d.Stderr.Missing)
		running.Finish()
	}
	left, _, err := r.collect(ctx, s, 1)
	r.clock.Lap("collect")
	return left, err
}

// copyOutput copies the file of an output, if there is one.
func copyOutput(to io.Writer, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil // the command has written nothing
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(to, f)
	return err
}
