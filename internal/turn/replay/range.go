package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn"
)

// A RangeRequest selects turns to run again, one on the other.
type RangeRequest struct {
	Ref     string // FROM..TO, or one turn
	Options Options
	// OnHead runs the turns on the present head of the branch of the first one's parent, as a
	// rebase does. The new turns are on a new branch, which is called Branch; empty: replay-N.
	OnHead bool
	Branch string
	// Each is called with each comparison; it may be nil.
	Each func(*turnstone.ReplayReport)
}

// Turns returns the turns from FROM to TO, along the first parents of TO, for a reference FROM..TO;
// otherwise the one turn that ref names. TO may be a number, a branch or a tag of FROM's session.
func Turns(ctx context.Context, cs *repo.ContextStore, ref string) ([]turnstone.Turn, error) {
	from, to, is := turnstone.CutRange(ref)
	first, err := cs.DB.Resolve(ctx, from)
	if err != nil || !is {
		return []turnstone.Turn{first}, err
	}
	t, err := cs.DB.ResolveIn(ctx, first.Session, to)
	if err != nil {
		return nil, err
	}
	all := []turnstone.Turn{t}
	for last := t; t.ID != first.ID; all = append(all, t) {
		if t.Parent() == "" || t.Session != first.Session {
			return nil, turnstone.Errorf("executor.range", turnstone.KindInvalid, ref,
				"turn %d is not an ancestor of turn %d", first.Number, last.Number).
				WithHint("turn log SESSION --graph shows the ancestors")
		}
		if t, err = cs.DB.Turn(ctx, t.Parent()); err != nil {
			return nil, err
		}
	}
	slices.Reverse(all)
	return all, nil
}

// A repetition is one turn of a range.
type repetition struct {
	old turnstone.Turn
	rec *turnstone.TurnRecord
	req *plan.Request
}

// Range runs turns again: the first on the state of its recorded parent, each other on the new turn
// before it. A turn that leaves no state ends the range. Without OnHead the new turns are in no
// session, and are kept until Range returns. If the report is nil, nothing was started.
func Range(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, q RangeRequest,
	obs turn.Observer) (rep *turnstone.RangeReport, err error) {
	turns, err := Turns(ctx, cs, q.Ref)
	if err != nil {
		return nil, err
	}
	var all []repetition
	for _, t := range turns { // first: nothing may be started that cannot be finished
		p := repetition{old: t}
		if p.rec, err = cs.Record(ctx, t); err == nil {
			p.req, err = replayed(ctx, cs, t, p.rec, q.Options)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	rep = &turnstone.RangeReport{Turns: []*turnstone.ReplayReport{}}
	hold, err := cs.Hold(ctx)
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	of := turn.Repeat{Session: turns[0].Session, Parents: turns[0].Parents, Hold: hold}
	if q.OnHead {
		of = turn.Repeat{Session: turns[0].Session, Adds: true}
		if rep.Branch, err = branchOnHead(ctx, cs, turns[0], q.Branch); err != nil {
			return nil, err
		}
	}
	for i, p := range all {
		of.Inputs, of.Number, of.Of = p.rec.Inputs, p.old.Number, p.old.ID
		if q.OnHead {
			p.req.Session, p.req.Branch = string(p.old.Session), rep.Branch
		}
		if obs != nil {
			obs.Preparing(fmt.Sprintf("turn %d: %s", p.old.Number, p.old.Title))
		}
		one, err := p.run(ctx, r, cs, of, obs)
		if one != nil {
			rep.Turns = append(rep.Turns, one)
			if !one.Same && rep.First == 0 {
				rep.First = one.Number
			}
		}
		if err != nil {
			rep.Left = len(all) - len(rep.Turns)
			return began(ctx, cs, rep, p.old.Session), err
		}
		if q.Each != nil {
			q.Each(one)
		}
		if one.Turn.State == "" {
			rep.Left = len(all) - i - 1
			break
		}
		of.Parents = []turnstone.TurnID{one.Turn.ID}
	}
	rep.Same = rep.First == 0 && rep.Left == 0
	return rep, nil
}

// began returns rep if a turn was started. Otherwise it removes the new branch.
func began(ctx context.Context, cs *repo.ContextStore, rep *turnstone.RangeReport,
	s turnstone.SessionID) *turnstone.RangeReport {
	if len(rep.Turns) > 0 {
		return rep
	}
	if rep.Branch != "" {
		_ = cs.DB.DeleteBranch(context.WithoutCancel(ctx), s, rep.Branch)
	}
	return nil
}

// run runs one turn again, and compares. A turn on another state is compared by its results alone.
func (p *repetition) run(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, of turn.Repeat,
	obs turn.Observer) (*turnstone.ReplayReport, error) {
	now, err := r.Repeat(ctx, *p.req, &of, obs)
	if now == nil {
		return nil, err
	}
	rep := &turnstone.ReplayReport{Of: p.rec.ID, Number: p.rec.Number, Home: p.rec.Home, Turn: now,
		Steps: []turnstone.StepDifference{}, Changes: []turnstone.FileDifference{}, Env: []string{}}
	if err != nil {
		return rep, err
	}
	if err = compare(ctx, cs, p.rec, rep, !of.Adds); err != nil && ctx.Err() != nil {
		err = turnstone.NewError("replay", turnstone.KindCanceled,
			fmt.Sprintf("turn %d", p.rec.Number), errors.New("interrupted, and not compared"))
	}
	return rep, err
}

// branchOnHead creates the branch for turns that run on the present head.
func branchOnHead(ctx context.Context, cs *repo.ContextStore, first turnstone.Turn, name string) (
	string, error) {
	on := first.Branch
	if id := first.Parent(); id != "" {
		parent, err := cs.DB.Turn(ctx, id)
		if err != nil {
			return "", err
		}
		on = parent.Branch
	}
	b, err := cs.DB.Branch(ctx, first.Session, on)
	if err != nil {
		return "", err
	}
	head, err := cs.DB.Turn(ctx, b.Head)
	if err != nil {
		return "", err
	}
	if name != "" {
		_, err = cs.DB.Fork(ctx, head, name)
		return name, err
	}
	for n := 1; ; n++ {
		if name = fmt.Sprintf("replay-%d", n); n > 10_000 {
			return "", err
		}
		if _, err = cs.DB.Fork(ctx, head, name); turnstone.KindOf(err) != turnstone.KindInvalid {
			return name, err // otherwise the name is taken
		}
	}
}
