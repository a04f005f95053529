package repo

import (
	"context"
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
)

// maxProblems bounds the problems that a report lists.
const maxProblems = 10_000

// addProblem adds p to r, or counts it.
func addProblem(r *turnstone.FsckReport, p turnstone.FsckProblem) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, p)
	} else {
		r.More++
	}
}

// Fsck reads and verifies every object of the store, checks that all data that the turns of all
// sessions and the homes need exists, and verifies the FS hashes and hard links of their trees. Damaged or lost
// sessions are a problem like others, and the rest is checked anyway. It changes nothing except the
// store's index, which can be rebuilt.
func (x *Repo) Fsck(ctx context.Context) (*turnstone.FsckReport, error) {
	rep := &turnstone.FsckReport{Problems: []turnstone.FsckProblem{}}
	cs, err := x.Open(ctx)
	if turnstone.KindOf(err) == turnstone.KindIntegrity {
		x.noSessions(rep, err)
		if cs, err = x.openWithoutSessions(ctx); err == nil {
			defer func() { _ = cs.close() }()
		}
	}
	if err != nil {
		return nil, err
	}
	if cs.DB != nil {
		found, err := cs.DB.Check(ctx)
		if err := x.orProblem(ctx, rep, err); err != nil {
			return nil, err
		}
		for _, line := range found {
			addProblem(rep, turnstone.FsckProblem{Where: x.Dir.Path("context.db"), Error: line})
		}
	}
	damaged := map[turnstone.Digest]bool{}
	rep.Store, err = cs.Store.Fsck(ctx, func(p store.Problem) {
		where := string(p.Object)
		for _, part := range []string{p.Pack, p.Segment} {
			if part != "" && where != "" {
				where += " in "
			}
			where += part
		}
		damaged[p.Object] = p.Object != ""
		addProblem(rep, turnstone.FsckProblem{Where: where, Error: fmt.Sprint(p.Err),
			Repaired: p.Repaired})
	})
	if err != nil {
		return nil, err
	}
	if err := cs.checkKeys(ctx, rep); x.orProblem(ctx, rep, err) != nil {
		return nil, err
	}
	return rep, x.checkTurns(ctx, cs, rep, damaged)
}

// noSessions reports that the sessions cannot be read, and the checks that are skipped because of
// that.
func (x *Repo) noSessions(rep *turnstone.FsckReport, err error) {
	addProblem(rep, turnstone.FsckProblem{Where: x.Dir.Path("context.db"),
		Error: fmt.Sprintf("%v; the data of its turns is not checked", CauseOf(err))})
}

// CauseOf returns err without its subject if err is a *turnstone.Error.
func CauseOf(err error) error {
	var te *turnstone.Error
	if errors.As(err, &te) && te.Err != nil {
		return te.Err
	}
	return err
}

// orProblem reports damaged sessions as a problem, and returns any other error.
func (x *Repo) orProblem(ctx context.Context, rep *turnstone.FsckReport, err error) error {
	if err == nil || ctx.Err() != nil || turnstone.KindOf(err) != turnstone.KindIntegrity {
		return err
	}
	x.noSessions(rep, err)
	return nil
}

// checkTurns checks that all data that turns need exists.
func (x *Repo) checkTurns(ctx context.Context, cs *ContextStore, rep *turnstone.FsckReport,
	damaged map[turnstone.Digest]bool) error {
	reached := Seen{} // names of objects in domains whose keys are here
	r := cs.checker(ctx, rep, damaged, nil)
	layers, err := cs.Layers(ctx)
	if err != nil {
		if err = r.Failed("templates", err); err != nil {
			return err
		}
	}
	for _, l := range layers {
		if err := r.Tree(ctx, "template "+l.Spec.Short(), l.Tree); err != nil {
			return err
		}
	}
	if cs.DB == nil {
		return nil
	}
	unfinished, err := cs.DB.Checkpoints(ctx)
	if err := x.orProblem(ctx, rep, err); err != nil {
		return err
	}
	for _, t := range unfinished {
		if t.Domain != "" {
			continue // below, with its key
		}
		if err := r.Turn(ctx, t); err != nil {
			return err
		}
	}
	all, err := cs.DB.Every(ctx)
	if err := x.orProblem(ctx, rep, err); err != nil {
		return err
	}
	sessions, of := map[turnstone.SessionID]bool{}, map[turnstone.DomainID]*Reach{"": r}
	for _, t := range all {
		sessions[t.Session] = true
		if of[t.Domain] == nil {
			of[t.Domain] = cs.checkerIn(ctx, rep, t.Domain, damaged, reached)
		}
		if r := of[t.Domain]; r.In == nil {
			continue // without its key, only the names are checked
		} else if t.Locked {
			if t, err = r.In.DB.Turn(ctx, t.ID); err != nil {
				return err
			}
		}
		if err := of[t.Domain].Turn(ctx, t); err != nil {
			return err
		}
	}
	for _, t := range unfinished {
		if r := of[t.Domain]; t.Domain != "" && r != nil && r.In != nil {
			if err := r.checkpoint(ctx, t); err != nil {
				return err
			}
		}
	}
	rep.Sessions, rep.Turns = len(sessions), len(all)
	if err := cs.checkNeeds(ctx, rep, damaged, reached); err != nil {
		return err
	}
	return x.orProblem(ctx, rep, r.Homes(ctx, nil))
}

// checkpoint checks the data of the checkpoint of a sealed turn.
func (r *Reach) checkpoint(ctx context.Context, t turnstone.Turn) error {
	c, err := r.In.DB.Checkpoint(ctx, t.ID)
	if turnstone.KindOf(err) == turnstone.KindNotFound || err == nil && c == nil {
		return nil // it has ended, or was removed, meanwhile
	}
	if err != nil {
		return r.Failed("checkpoint of turn "+string(t.ID), err)
	}
	return r.Turn(ctx, c.As(t))
}

// checkerIn is checker for the turns of a domain. Its In is nil if the domain's key is not at hand.
func (cs *ContextStore) checkerIn(ctx context.Context, rep *turnstone.FsckReport,
	d turnstone.DomainID, damaged map[turnstone.Digest]bool, reached Seen) *Reach {
	in, err := cs.In(ctx, d)
	if err != nil {
		return &Reach{}
	}
	return in.checker(ctx, rep, damaged, reached)
}

// checkNeeds checks that all objects exist that sealed sessions need, which their names tell without
// a key, and that gc knows of all that were reached with the keys.
func (cs *ContextStore) checkNeeds(ctx context.Context, rep *turnstone.FsckReport,
	damaged map[turnstone.Digest]bool, reached Seen) error {
	seen := Seen{}
	var failed error
	err := cs.DB.Needs(ctx, nil, func(name turnstone.Digest) bool {
		if failed != nil || !seen.First(name) || damaged[name] {
			return false
		}
		has, err := cs.Store.HasName(ctx, name)
		if failed = err; err == nil && !has {
			addProblem(rep, turnstone.FsckProblem{Where: string(name),
				Error: "an object of a sealed session is missing"})
		}
		return true
	})
	for name := range reached {
		if failed != nil || seen[name] {
			continue
		}
		var has bool
		if has, failed = cs.Store.HasName(ctx, name); has {
			addProblem(rep, turnstone.FsckProblem{Where: string(name),
				Error: "an object of a sealed session is not among what its turns need: " +
					"gc would delete it"})
		}
	}
	return errors.Join(err, failed)
}

// checker returns what checks the data that turns of cs need. reached gets the names of objects, if
// cs is sealed.
func (cs *ContextStore) checker(ctx context.Context, rep *turnstone.FsckReport,
	damaged map[turnstone.Digest]bool, reached Seen) *Reach {
	seen := Seen{}
	reach := func(d turnstone.Digest) {
		if name, err := cs.Store.Name(d); err == nil && cs.Sealed() {
			reached[name] = true
		}
	}
	r := &Reach{In: cs, Object: func(d turnstone.Digest) bool {
		first := seen.First(d)
		if first {
			reach(d)
		}
		return first
	}, Verify: tree.NewVerifier(cs.Store),
		Failed: func(what string, err error) error {
			if ctx.Err() != nil {
				return err
			}
			addProblem(rep, turnstone.FsckProblem{Where: what, Error: err.Error()})
			return nil
		}}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		if !seen.First(c.Digest) {
			return nil
		}
		objects, err := cs.Store.ContentObjects(ctx, c)
		if err != nil && cs.inTemplate(c.Digest) {
			return nil
		}
		for _, d := range objects {
			if reach(d); err == nil && !damaged[d] {
				err = cs.there(ctx, d)
			}
		}
		return err
	}
	return r
}

// there reports a missing object d as an error.
func (cs *ContextStore) there(ctx context.Context, d turnstone.Digest) error {
	has, err := cs.Store.Has(ctx, d)
	if err == nil && !has {
		err = turnstone.NewError("executor.fsck", turnstone.KindNotFound, string(d), nil)
	}
	return err
}
