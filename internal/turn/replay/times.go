package replay

import (
	"context"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn"
)

// The bounds of the number of runs.
const (
	minTimes = 2
	maxTimes = 100
)

// A TimesRequest is a turn to run several times.
type TimesRequest struct {
	Request plan.Request
	Times   int
}

// Times runs a turn several times, each time on the same state, until a run differs from the first.
// Only the first run is in a session, and its report has the comparison. Without a report
// nothing was started. An error with a report means that a run could not be started or compared.
func Times(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, t TimesRequest,
	obs turn.Observer) (*turnstone.TurnReport, error) {
	n, req := t.Times, t.Request
	if n < minTimes || n > maxTimes {
		return nil, turnstone.Errorf("executor.times", turnstone.KindInvalid, "--times",
			"%d is not between %d and %d", n, minTimes, maxTimes)
	}
	first, err := r.Run(ctx, req, obs)
	if err != nil || first.Result == turnstone.ResultError || first.Record == "" {
		return first, err
	}
	rep := &turnstone.TimesReport{Asked: n, Runs: []turnstone.RunReport{runOf(first)}}
	first.Times = rep
	was, err := cs.ReadRecord(ctx, first.Record)
	if err != nil {
		return first, err
	}
	of := turn.Repeat{Parents: first.Parents, Session: was.Session, Fresh: true}
	req = onlyRuns(req, first)
	for i := 2; i <= n; i++ {
		if obs != nil {
			obs.Preparing(fmt.Sprintf("run %d of %d", i, n))
		}
		now, err := r.Repeat(ctx, req, &of, quiet{obs})
		if err != nil {
			return first, err
		}
		rep.Runs = append(rep.Runs, runOf(now))
		if now.Result == turnstone.ResultError {
			return first, turnstone.Errorf("executor.times", now.Kind, fmt.Sprintf("run %d", i), "%s",
				now.Error).WithHint(now.Hint)
		}
		is, err := cs.ReadRecord(ctx, now.Record)
		if err != nil {
			return first, err
		}
		d, err := firstDifference(ctx, cs, was, is)
		if err != nil {
			return first, err
		}
		if d != nil {
			d.Run, rep.Difference = i, d
			return first, nil
		}
	}
	rep.Same = true
	return first, nil
}

func runOf(t *turnstone.TurnReport) turnstone.RunReport {
	return turnstone.RunReport{ID: t.ID, Result: t.Result, FSHash: t.FSHash, Millis: t.Millis}
}

// onlyRuns returns req without what outlives a run, and with what the first run ran with.
func onlyRuns(req plan.Request, first *turnstone.TurnReport) plan.Request {
	doc := *req.Document
	doc.Front.Lifetime, doc.Front.Snapshot, doc.Front.Home = "", "", ""
	doc.Front.Checkpoint, req.Checkpoint = "", ""
	req.Document = &doc
	req.Lifetime, req.Snapshot, req.Home, req.Get = "", "", "", nil
	pinned(&req, first.Determinism)
	return req
}

// quiet passes on only what is not about steps.
type quiet struct{ obs turn.Observer }

func (q quiet) Preparing(what string) {
	if q.obs != nil {
		q.obs.Preparing(what)
	}
}

func (quiet) StepStarted(*document.Step)                          {}
func (quiet) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (quiet) StepFinished(*document.Step, turnstone.StepReport)   {}
