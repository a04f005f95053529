package turn

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/turn/place"
	"turnstone.dev/turnstone/internal/turn/state"
)

// keptSteps is the checkpoint of a turn: what its first steps left, in the store.
type keptSteps struct {
	step   int // the number of the last of them
	record *turnstone.TurnRecord
}

// keepSteps replaces the turn's checkpoint before the step next, if the turn asks for checkpoints
// and ran says that a step has run in this sandbox. After an error next must not start.
func (r *run) keepSteps(ctx context.Context, s *sandbox.Sandbox, next *document.Step,
	ran bool) error {
	if r.plan.Checkpoint != turnstone.CheckpointStep || !ran {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keepLimitTime)
	defer cancel()
	last := r.doc.Steps[next.Index-2]
	r.info.Error, r.info.Duration = "the executor ended after "+last.Name,
		time.Since(r.info.Started)
	if err := r.keepState(ctx, s, last); err != nil {
		err = sandbox.Interrupted(ctx, err, "while the checkpoint after "+last.Name+" was kept")
		return turnstone.NewError("executor.checkpoint", turnstone.KindOf(err),
			"the checkpoint after "+last.Name+" is not kept", err).
			WithHint(turnstone.HintOf(err))
	}
	return nil
}

// keepState stores the state of the running sandbox, and the results of the steps up to last. The
// sandbox continues: its machine is paused only while its changes are read.
func (r *run) keepState(ctx context.Context, s *sandbox.Sandbox, last *document.Step) error {
	if err := r.fault("checkpoint.collect"); err != nil {
		return err
	}
	left, _, err := r.collectWith(ctx, s, 1, state.PauseRunning)
	resumed := s.Resume(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer func() { _ = left.Batch.Close() }()
	r.base = left.Base
	if err := r.steps.Sync(); err != nil { // the outputs that the receipt names
		r.obs.Preparing("a long output may not be kept in the state directory: " + err.Error())
	}
	rec, err := r.stepsRecord(ctx, left, last)
	if err != nil {
		return err
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	digest, err := left.Batch.Put(ctx, b)
	if err == nil {
		err = left.Batch.Flush(ctx)
	}
	if err == nil {
		err = r.fault("checkpoint.set")
	}
	if err == nil {
		err = r.at.Keep(ctx, place.Kept{Batch: left.Batch, Base: left.Base}, digest, left.State,
			last.Index)
	}
	if err == nil {
		r.kept = &keptSteps{step: last.Index, record: rec}
		err = r.fault("checkpoint.done")
	}
	if err == nil {
		err = resumed
	}
	return err
}

// fault calls the hook of tests.
func (r *run) fault(op string) error {
	if f := r.host.Repo.Fault; f != nil {
		return f(op)
	}
	return nil
}

// stepsRecord puts the data of the steps up to last into the batch of l, and returns their record. Without
// last it is the record of the turn's beginning.
func (r *run) stepsRecord(ctx context.Context, l *state.Collected, last *document.Step) (
	*turnstone.TurnRecord, error) {
	rec := r.aboutTurn(l)
	rec.Branch = r.plan.Branch
	put := func(to *turnstone.Content, b []byte) (err error) {
		*to, err = l.Batch.PutContent(ctx, bytes.NewReader(b), int64(len(b)))
		return err
	}
	if err := put(&rec.Document, r.doc.Clean()); err != nil {
		return nil, err
	}
	if err := put(&rec.Receipt, r.steps.Receipt(&r.info)); err != nil {
		return nil, err
	}
	finished := 0
	if last != nil {
		finished = last.Index
	}
	all, err := r.steps.Progress(finished) // after Receipt, which may have removed results
	if err != nil {
		return nil, err
	}
	rec.Progress = make([]turnstone.Content, len(all))
	for i, b := range all {
		if err := put(&rec.Progress[i], b); err != nil {
			return nil, err
		}
	}
	quiet := func(string) {} // the end of the turn tells
	if r.shape.Network {
		if rec.Network, err = r.tape.Keep(ctx, l.Batch, &r.plan.Net.Asked, quiet); err != nil {
			return nil, err
		}
	}
	if rec.Inputs, err = r.inputs.Keep(ctx, l.Batch, quiet); err != nil {
		return nil, err
	}
	for _, step := range r.doc.Steps[:finished] {
		res := r.steps.Result(step)
		out := turnstone.RecordStep{Name: step.Name, Status: res.Status, ExitCode: res.ExitCode}
		if out.Stdout, err = r.putOutput(ctx, l, step, turnstone.Stdout); err != nil {
			return nil, err
		}
		if out.Stderr, err = r.putOutput(ctx, l, step, turnstone.Stderr); err != nil {
			return nil, err
		}
		rec.Steps = append(rec.Steps, out)
	}
	guests := *rec
	guests.Image = "" // as in commit
	if name := receipt.LeakIn(r.plan.Secrets.Written(), &guests); name != "" {
		return nil, state.Leaked("the results of the steps", name)
	}
	return rec, nil
}

// keptOutput returns an output that the turn's checkpoint has. ok is false if it has none, and the
// output has to be stored.
func (r *run) keptOutput(step *document.Step, stream turnstone.Stream) (c *turnstone.Content,
	ok bool) {
	if r.kept == nil || step.Index > r.kept.step || step.Index > len(r.kept.record.Steps) {
		return nil, false
	}
	res, kept := r.steps.Result(step), r.kept.record.Steps[step.Index-1]
	out, c := res.Stdout, kept.Stdout
	if stream == turnstone.Stderr {
		out, c = res.Stderr, kept.Stderr
	}
	if out.Size == 0 { // the result was removed, because of a secret
		return nil, true
	}
	return c, true
}

// interrupt ends a turn that has a checkpoint without a record: it can be resumed. Its receipt says
// so, and is not signed.
func (r *run) interrupt() committed {
	ctx, cancel := context.WithTimeout(context.Background(), keepLimitTime)
	defer cancel()
	if r.info.Result != turnstone.ResultError {
		r.fail(fmt.Errorf("%s: its machine did not obey, and ended", r.info.Result))
	}
	r.info.FSHash, r.info.Layer, r.info.Changes, r.info.Branch = "", "", "", r.plan.Branch
	again := fmt.Sprintf("continue after %s with turn resume %s", r.doc.Steps[r.kept.step-1].Name,
		r.info.ID)
	if r.hint != "" {
		again = r.hint + "; " + again
	}
	r.hint = again
	c := committed{receipt: r.steps.Receipt(&r.info)}
	r.keepReceipt(c.receipt)
	if err := r.at.Finish(ctx, place.Kept{}, turnstone.ResultError, "", "", nil); err != nil {
		r.obs.Preparing("the turn is not stored as interrupted: " + err.Error())
	}
	return c
}
