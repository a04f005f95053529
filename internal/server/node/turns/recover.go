package turns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/turnlog"
)

// A Resumer is an Executor that knows the turns of a former process, and resumes interrupted ones.
type Resumer interface {
	ResumeTurn(ctx context.Context, r executor.ResumeTurnRequest, o executor.Observer) (
		*turnstone.TurnReport, error)
	Ended(ctx context.Context, id turnstone.TurnID) (rep *turnstone.TurnReport, resumable bool,
		err error)
}

// resumedFile is a file of a ticket's folder that exists once the node itself has resumed the turn.
const resumedFile = "resumed"

// begun is what begunFile says of the turn that a ticket began. Older programs wrote nothing.
type begun struct {
	Turn turnstone.TurnID `json:"turn,omitempty"`
	// Times: the turn runs several times, and its report compares the runs.
	Times bool `json:"times,omitempty"`
	// Retry is how often the turn starts again at most after its node was lost.
	Retry int `json:"retry,omitempty"`
	// Operator: its client was connected over the operator's socket.
	Operator bool `json:"operator,omitempty"`
}

// readBegun reads begunFile in the folder of a ticket. started is false if no turn was started.
func readBegun(dir, id string) (b begun, started bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, begunFile))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && string(text) == cancelled:
		return b, false, nil
	case err != nil:
		return b, false, failed(id, err)
	case len(text) == 0:
		return b, true, nil
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, true, damaged(id, err)
	}
	return b, true, nil
}

// Recover gives each turn that a former process of the node left an end: that of its session, if it
// has ended there, or else an error with its last receipt. A turn with a checkpoint is resumed
// instead, once. limit is that of the turns of a ticket's client. Recover is called once, before the
// first client.
func (s *Service) Recover(limit func(t Ticket, operator bool) Limit) error {
	ids, err := s.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.recoverTicket(id, limit); err != nil {
			slog.Warn("a turn of a former process has no end", "ticket", id, "err", err)
		}
	}
	return nil
}

func (s *Service) recoverTicket(id string, limit func(Ticket, bool) Limit) error {
	t, dir, err := s.load(id)
	if err != nil {
		return err
	}
	b, started, err := readBegun(dir, id)
	if err != nil || !started {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, outcomeFile)); err == nil {
		return endJournal(dir, nil, nil) // it was synced before the outcome was written
	}
	told := s.told(dir, b)
	if told {
		if waits, err := s.awaits(id); waits || err != nil {
			return err
		}
	}
	x, ok := s.x.(Resumer)
	if !ok || b.Turn == "" || b.Times {
		return endJournal(dir, nil, nil)
	}
	report, resumable, err := x.Ended(s.ctx, b.Turn)
	if err == nil && resumable && !told {
		switch err := writeSynced(filepath.Join(dir, resumedFile), nil); {
		case err == nil:
			return s.resumeTicket(t, dir, b, x, limit(t, b.Operator))
		case !errors.Is(err, fs.ErrExist):
			return failed(id, err)
		}
	}
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return endJournal(dir, nil, turnstone.Errorf("turn.run", turnstone.KindDead, "the node",
			"was restarted before the turn began").WithHint("run it again"))
	}
	if err := endJournal(dir, report, err); err != nil {
		return err
	}
	return keepOutcome(dir, startedAt(dir), s.now(), report)
}

// resumeTicket continues the turn of a ticket, and its journal.
func (s *Service) resumeTicket(t Ticket, dir string, b begun, x Resumer, limit Limit) error {
	return s.resumeShared(t, dir, b, x, limit, work{})
}

// resumeShared is resumeTicket for an attempt that other nodes may know.
func (s *Service) resumeShared(t Ticket, dir string, b begun, x Resumer, limit Limit, of work) error {
	f, ended, err := openJournal(dir)
	if err != nil {
		return err
	}
	if ended { // the executor died between the journal's end and the outcome
		return f.Close()
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w := work{turn: b.Turn, attempt: of.attempt, shared: of.shared, do: func(ctx context.Context, o executor.Observer) (
		*turnstone.TurnReport, error) {
		o.Preparing(cmp.Or(of.why,
			"the node was restarted: the turn continues after its last finished step"))
		rep, err := x.ResumeTurn(ctx, executor.ResumeTurnRequest{Ref: string(b.Turn), Remote: true}, o)
		if rep != nil {
			return rep, err
		}
		rep, _, other := x.Ended(context.WithoutCancel(ctx), b.Turn)
		if other != nil {
			return nil, err
		}
		rep.Error += ", and is not resumed by itself: " + err.Error()
		return rep, nil
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.launch(t, &journal{f: f, size: size, change: make(chan struct{})}, startedAt(dir), w, limit,
		func(ctx context.Context) (func(), error) { // its work has begun: it waits for as long as it takes
			select {
			case s.places <- struct{}{}:
				return func() { <-s.places; s.queue.Wake() }, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		})
	return nil
}

// openJournal opens the journal in dir for more lines, and reports whether it has its end. A line
// that was cut is removed: it would spoil the next.
func openJournal(dir string) (f *os.File, ended bool, err error) {
	f, err = os.OpenFile(journalOf(dir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	ended, whole, err := turnlog.Scan(f)
	if err == nil && !ended {
		err = f.Truncate(whole)
	}
	if err == nil && !ended {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return f, ended, nil
}

// endJournal appends an end to the journal in dir, if it has none. Without a report and an error,
// the end says that the node was restarted.
func endJournal(dir string, report *turnstone.TurnReport, failure error) error {
	f, ended, err := openJournal(dir)
	if err != nil || ended {
		if f != nil {
			_ = f.Close()
		}
		return err
	}
	defer func() { _ = f.Close() }()
	if report == nil && failure == nil {
		failure = turnstone.Errorf("turn.run", turnstone.KindDead, "the node",
			"was restarted while the turn ran").
			WithHint("turn log shows whether the turn is kept; run it again if not")
	}
	w := turnlog.NewWriter(f)
	w.Preparing("the node was restarted") // ends a report that is not complete
	return errors.Join(w.End(report, failure), f.Sync())
}
