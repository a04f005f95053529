package turn

import (
	"context"
	"encoding/json"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/place"
	"turnstone.dev/turnstone/internal/turn/state"
)

// keepStart keeps what the turn begins with, if it may start again after its executor was lost: a
// checkpoint before the first step, which has the document and the files, and no state, because that is
// the parent's. After an error no step must start. The steps of a turn of the tier strict have run in
// its machine by now, so such a turn keeps nothing, and does not start again.
func (r *run) keepStart(ctx context.Context) error {
	if r.plan.Retry == 0 || r.at.Replay || r.at.Resumed != nil || r.strict() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keepLimitTime)
	defer cancel()
	batch, err := r.at.Context.Store.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = batch.Close() }()
	rec, err := r.stepsRecord(ctx, &state.Collected{Batch: batch}, nil)
	if err != nil {
		return err
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	digest, err := batch.Put(ctx, b)
	if err == nil {
		err = batch.Flush(ctx)
	}
	if err == nil {
		err = r.at.Keep(ctx, place.Kept{Batch: batch}, digest, "", 0)
	}
	if err == nil {
		err = r.fault("retry.kept")
	}
	if err != nil {
		return turnstone.NewError("executor.retry", turnstone.KindOf(err),
			"what the turn begins with is not kept", err).WithHint(turnstone.HintOf(err))
	}
	return nil
}

// resumable reports whether the turn continues after its last finished step if it is resumed. A turn
// that can only start again ends like any other: that is for executors that were lost.
func (r *run) resumable() bool { return r.kept != nil && r.kept.step > 0 }

// startAgain takes the place of an interrupted turn whose checkpoint is its beginning.
func (r *run) startAgain(ctx context.Context, cs *repo.ContextStore, at *place.Place) error {
	rec, err := cs.ReadRecord(ctx, at.Resumed.Record)
	if err == nil && (len(rec.Progress) != 0 || len(rec.Steps) != 0) {
		err = turnstone.Errorf("executor.resume", turnstone.KindIntegrity, string(at.Turn.ID),
			"the checkpoint of its beginning has steps")
	}
	if err != nil {
		at.Abandon(ctx)
		return err
	}
	r.at, r.began = at, rec
	r.info.ID, r.info.Started = at.Turn.ID, rec.Started
	return nil
}

// describeAttempt returns what a receipt says about a turn that started again.
func describeAttempt(n int) string {
	return fmt.Sprintf("attempt %d, from the beginning: the executor of the attempt before was lost", n)
}
