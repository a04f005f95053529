package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// Ended returns the report of a turn that does not run, from what is kept of it, for a caller that
// did not see its end. That of an interrupted turn has the result "error" and its last receipt; such
// a turn has a checkpoint if resumable is set. What a killed process left of its lease is removed. The
// error is of kind NotFound if there is no such turn, and of kind Unavailable if it still runs.
func (x *Repo) Ended(ctx context.Context, id turnstone.TurnID) (rep *turnstone.TurnReport,
	resumable bool, err error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, false, err
	}
	if _, _, err = x.Resolve(ctx, string(id)); err == nil ||
		turnstone.KindOf(err) == turnstone.KindNotFound {
		err = errors.Join(err, cs.DB.Forsake(ctx, id))
	}
	if err != nil {
		return nil, false, err
	}
	info, err := x.Show(ctx, string(id))
	if turnstone.KindOf(err) == turnstone.KindNotFound { // an object is missing, and not the turn
		err = turnstone.NewError("turn.ended", turnstone.KindIntegrity, string(id), err)
	}
	if err != nil {
		return nil, false, err
	}
	t := &info.Turn
	rep = &turnstone.TurnReport{ID: t.ID, Result: t.Result, Session: info.Session.Label(),
		Number: t.Number, Branch: t.Branch, Parents: t.Parents, Started: t.Started,
		Millis: t.Ended.Sub(t.Started).Milliseconds(), State: t.State, Record: t.Record,
		Layer: new(turnstone.LayerInfo), Phases: []turnstone.Phase{},
		Steps: []turnstone.StepReport{}}
	if t.Status == turnstone.TurnRunning {
		return nil, false, turnstone.Errorf("turn.ended", turnstone.KindUnavailable, string(id),
			"still runs").WithHint("wait for it")
	}
	if info.Record != nil {
		return rep, false, x.endedWhole(ctx, info, rep)
	}
	rep.Kind, rep.Error = turnstone.KindDead, "the executor ended while the turn ran"
	rep.Hint = "run it again"
	if info.Checkpoint != nil {
		rep.Hint = fmt.Sprintf("continue after step %d with turn resume %s", info.Checkpoint.Step, id)
		if info.Checkpoint.Step == 0 {
			rep.Hint = fmt.Sprintf("start it again with turn resume %s", id)
		}
		rep.Resumed = info.Checkpoint.Resumed
	}
	text, err := x.lastReceipt(ctx, info)
	if err != nil {
		return nil, false, err
	}
	rep.Receipt = string(text)
	return rep, info.Checkpoint != nil, nil
}

// endedWhole completes the report of a turn with a record.
func (x *Repo) endedWhole(ctx context.Context, info *turnstone.TurnInfo,
	rep *turnstone.TurnReport) error {
	r := info.Record
	rep.Error, rep.Image, rep.Template, rep.Substrate = r.Error, r.Image, r.Template, r.Substrate
	rep.Isolation, rep.Started, rep.Millis = r.Isolation, r.Started, r.Millis
	rep.Layer, rep.Network, rep.Home = &r.Layer, r.Network, r.HomeUse
	rep.Determinism, rep.Resumed = r.Determinism, r.Resumed
	if rep.Error != "" {
		rep.Kind = turnstone.KindDead // the record does not have it
	}
	if info.State != nil {
		rep.FSHash = info.State.Tree.Hash
	}
	text, err := x.Receipt(ctx, string(info.Turn.ID))
	if err != nil {
		return err
	}
	rep.Receipt = string(text)
	lines := map[int]int{}
	if doc, err := document.Parse("receipt.md", text); err == nil {
		for i, s := range doc.Steps {
			lines[i] = s.Line
		}
	}
	for i, s := range r.Steps {
		rep.Steps = append(rep.Steps, turnstone.StepReport{Name: s.Name, Line: lines[i],
			Status: s.Status, ExitCode: s.ExitCode})
	}
	return nil
}

// lastReceipt returns the last receipt of an interrupted turn: that of its folder, or else that of
// its checkpoint; empty: there is none.
func (x *Repo) lastReceipt(ctx context.Context, info *turnstone.TurnInfo) ([]byte, error) {
	cs, t, err := x.Resolve(ctx, string(info.Turn.ID))
	if err != nil {
		return nil, err
	}
	text, err := cs.lastReceipt(t)
	switch {
	case err == nil:
		return text, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, turnstone.NewError("turn.ended", turnstone.KindUnavailable, string(info.Turn.ID), err)
	case info.Checkpoint == nil:
		return nil, nil
	}
	return x.Receipt(ctx, string(info.Turn.ID))
}
