package turns

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/turnlog"
)

// survivor is an executor that knows a turn of a former process.
type survivor struct {
	*player
	ended     turnstone.TurnReport
	resumable bool
	err       error // of Ended
	refuses   error // of ResumeTurn
	resumed   []string
	limited   any // the client whose limit the resumed turn had
}

func (x *survivor) Ended(context.Context, turnstone.TurnID) (*turnstone.TurnReport, bool, error) {
	if x.err != nil {
		return nil, false, x.err
	}
	rep := x.ended
	return &rep, x.resumable, nil
}

func (x *survivor) ResumeTurn(ctx context.Context, r executor.ResumeTurnRequest,
	o executor.Observer) (*turnstone.TurnReport, error) {
	x.resumed, x.limited = append(x.resumed, r.Ref), ctx.Value(limitKey{})
	if x.refuses != nil {
		return nil, x.refuses
	}
	return &turnstone.TurnReport{ID: turnstone.TurnID(r.Ref), Result: turnstone.ResultPassed,
		Receipt: "resumed"}, nil
}

const killed = turnstone.TurnID("t_06h0roc6jvt83o48kg")

// killedScene is a scene whose turn was started by a process that was killed.
func killedScene(t *testing.T, journal string, b begun) *scene {
	t.Helper()
	s := newScene(t, t.TempDir(), newPlayer())
	dir := filepath.Join(s.dir, s.ticket.ID)
	if err := s.begin(s.ticket, dir, b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, journalFile), []byte(journal), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// end returns the end of the scene's turn as its client sees it.
func (c *scene) end(t *testing.T) (*turnstone.TurnReport, error) {
	t.Helper()
	r := turnlog.NewReader(c.doc, nil)
	if err := read(c.connect(t, c.client), r, c.ticket.ID, whole); err != nil {
		t.Fatal(err)
	}
	report, err, ok := r.Result()
	if !ok {
		t.Fatal("the journal has no end")
	}
	return report, err
}

// TestRecover: a client that connects again after its node was killed gets the end of its turn, and
// the turn's state says the same.
func TestRecover(t *testing.T) {
	interrupted := turnstone.TurnReport{ID: killed, Number: 3, Result: turnstone.ResultError,
		Receipt: "last", Session: "s"}
	passed := interrupted
	passed.Result = turnstone.ResultPassed
	gone := turnstone.Errorf("turn", turnstone.KindNotFound, string(killed), "there is none")
	for name, c := range map[string]struct {
		x       survivor
		begun   begun
		want    turnstone.Result
		kind    turnstone.Kind
		receipt string
		resumed int
	}{
		"it had ended":        {survivor{ended: passed}, begun{Turn: killed}, "passed", "", "last", 0},
		"it was interrupted":  {survivor{ended: interrupted}, begun{Turn: killed}, "error", "", "last", 0},
		"it has a checkpoint": {survivor{ended: interrupted, resumable: true}, begun{Turn: killed}, "passed", "", "resumed", 1},
		"it cannot be resumed": {survivor{ended: interrupted, resumable: true,
			refuses: errors.New("no secret")}, begun{Turn: killed}, "error", "", "last", 1},
		"it never began":  {survivor{err: gone}, begun{Turn: killed}, "error", turnstone.KindDead, "", 0},
		"several runs":    {survivor{ended: passed}, begun{Turn: killed, Times: true}, "error", turnstone.KindDead, "", 0},
		"an older ticket": {survivor{ended: passed}, begun{}, "error", turnstone.KindDead, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := killedScene(t, `{"started":1}`+"\n"+`{"output":{"st`, c.begun)
			x := c.x
			x.player = newPlayer()
			for range 2 { // a second restart changes nothing
				again := s.restart(t, &x)
				report, err := again.end(t)
				if c.kind != "" && (report != nil || turnstone.KindOf(err) != c.kind) ||
					c.kind == "" && (report == nil || report.Result != c.want ||
						report.Receipt != c.receipt) {
					t.Errorf("%+v, %v", report, err)
				}
				if len(x.resumed) != c.resumed || x.runs.Load() != 0 ||
					c.resumed > 0 && x.limited != s.client {
					t.Errorf("resumed %v, run %d, for %v", x.resumed, x.runs.Load(), x.limited)
				}
				if err := again.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				i, err := again.Get(s.ticket.ID)
				if err != nil || i.State != Done || i.Result != c.want ||
					c.receipt == "last" && (i.Turn != killed || i.Number != 3) {
					t.Errorf("%+v, %v", i, err)
				}
			}
		})
	}
}

// TestRecoverOnce: a turn that the node has resumed by itself once, and that was interrupted again,
// ends with its receipt.
func TestRecoverOnce(t *testing.T) {
	s := killedScene(t, "", begun{Turn: killed})
	if err := writeSynced(filepath.Join(s.dir, s.ticket.ID, resumedFile), nil); err != nil {
		t.Fatal(err)
	}
	x := &survivor{player: newPlayer(), resumable: true, ended: turnstone.TurnReport{ID: killed,
		Result: turnstone.ResultError, Receipt: "last", Hint: "turn resume"}}
	report, _ := s.restart(t, x).end(t)
	if report == nil || report.Receipt != "last" || len(x.resumed) > 0 {
		t.Errorf("%+v, %v", report, x.resumed)
	}
}

// TestRefusedResumeSaysWhy: the end of a turn that the node cannot resume has the reason.
func TestRefusedResumeSaysWhy(t *testing.T) {
	s := killedScene(t, "", begun{Turn: killed})
	x := &survivor{player: newPlayer(), resumable: true, refuses: errors.New("no secret"),
		ended: turnstone.TurnReport{ID: killed, Result: turnstone.ResultError, Error: "it ended"}}
	report, _ := s.restart(t, x).end(t)
	if report == nil || !strings.Contains(report.Error, "it ended") ||
		!strings.Contains(report.Error, "no secret") {
		t.Errorf("%+v", report)
	}
}

// TestKeyStaysWhileTurnWaits: the client's key, which limit holds until its context ends, is held while
// the turn waits for a place, and not after the turn.
func TestKeyStaysWhileTurnWaits(t *testing.T) {
	s := newScene(t, t.TempDir(), newPlayer())
	j, err := createJournal(filepath.Join(t.TempDir(), journalFile))
	if err != nil {
		t.Fatal(err)
	}
	held, free := make(chan context.Context, 2), make(chan struct{})
	limit := func(ctx context.Context) context.Context {
		held <- ctx
		return ctx
	}
	waits, done := make(chan struct{}), make(chan struct{})
	w := work{do: func(context.Context, executor.Observer) (*turnstone.TurnReport, error) {
		close(done)
		return &turnstone.TurnReport{Result: turnstone.ResultPassed}, nil
	}}
	s.mu.Lock()
	s.launch(s.ticket, j, s.now(), w, limit, func(context.Context) (func(), error) {
		close(waits)
		<-free
		return func() {}, nil
	})
	s.mu.Unlock()
	<-waits
	var during context.Context
	select {
	case during = <-held:
	default:
		t.Fatal("the key is not held while the turn waits")
	}
	if during.Err() != nil {
		t.Error("the key is released while the turn waits")
	}
	close(free)
	<-done
	<-during.Done() // the key is released
}
