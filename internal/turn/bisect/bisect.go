// Package bisect finds the first turn, or the first command of a turn, that differs.
package bisect

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/sandbox/command"
	"turnstone.dev/turnstone/internal/turn"
	"turnstone.dev/turnstone/internal/turn/replay"
	"turnstone.dev/turnstone/wire"
)

// A Request says what to search.
type Request struct {
	Ref string // FROM..TO: a turn; one turn: a command of it
	// Command tests the state of a turn, in a sandbox on that state. Without Argv, the test of a
	// turn is whether its replay differs.
	Command command.Request
	Options replay.Options
	Tell    func(string) // gets a line after each test
}

// A bisection is a search that runs.
type bisection struct {
	Request
	host   *host.Host
	runner *turn.Runner
	obs    turn.Observer
	report *turnstone.BisectReport
}

// Run searches. Without a report, the request is wrong or the search could not be finished.
func Run(ctx context.Context, h *host.Host, r *turn.Runner, q Request, obs turn.Observer) (
	*turnstone.BisectReport, error) {
	cs, err := h.Context(ctx)
	if err != nil {
		return nil, err
	}
	turns, err := replay.Turns(ctx, cs, q.Ref)
	if err != nil {
		return nil, err
	}
	b := &bisection{Request: q, host: h, runner: r, obs: obs,
		report: &turnstone.BisectReport{Tests: []turnstone.BisectTest{}}}
	_, _, several := turnstone.CutRange(q.Ref)
	switch {
	case len(q.Command.Argv) > 0:
		if len(turns) < 2 {
			return nil, fail(turnstone.KindInvalid, q.Ref,
				"name a good turn, and a bad turn after it: SESSION@3..SESSION@10",
				"is one turn")
		}
		err = b.byCommand(ctx, turns)
	case several:
		err = b.byReplay(ctx, turns)
	default:
		err = b.within(ctx, cs, turns[0])
	}
	if err != nil {
		return nil, err
	}
	return b.report, nil
}

func fail(kind turnstone.Kind, subject, hint, format string, args ...any) error {
	return turnstone.Errorf("executor.bisect", kind, subject, format, args...).WithHint(hint)
}

func (b *bisection) tell(format string, args ...any) {
	if b.Tell != nil {
		b.Tell(fmt.Sprintf(format, args...))
	}
}

// The verdicts of tests.
const (
	good    = "good"
	bad     = "bad"
	skip    = "skip"
	same    = "same"
	differs = "differs"
)

// byCommand searches the first turn on whose state the command fails. The first turn is good and the
// last is bad, which is tested first.
func (b *bisection) byCommand(ctx context.Context, turns []turnstone.Turn) error {
	lo, hi := 0, len(turns)-1
	for _, i := range []int{lo, hi} {
		v, err := b.test(ctx, turns[i])
		if err != nil {
			return err
		}
		subject := fmt.Sprintf("turn %d", turns[i].Number)
		switch {
		case v == skip:
			return fail(turnstone.KindInvalid, subject, "name another end of the range",
				"the command cannot test it (exit 125)")
		case i == lo && v == bad:
			hint := "begin the range at an earlier turn"
			if notStarted(b.last().ExitCode) {
				hint = "name a command that the template of the turn has; for a line of shell, use " +
					"-- sh -c 'LINE'"
			}
			return fail(turnstone.KindInvalid, subject, hint,
				"the command fails there already: exit %d", *b.last().ExitCode)
		case i == hi && v == good:
			b.report.Note = fmt.Sprintf("the command succeeds on turn %d too", turns[i].Number)
			return nil
		}
	}
	skipped := map[int]bool{}
	for hi-lo > 1 {
		i, ok := middle(lo, hi, skipped)
		if !ok {
			break
		}
		v, err := b.test(ctx, turns[i])
		if err != nil {
			return err
		}
		switch v {
		case good:
			lo = i
		case bad:
			hi = i
		default:
			skipped[i] = true
		}
		b.tell("turn %d: %s; turns that remain: %d, sandboxes: about %d", turns[i].Number, v, hi-lo-1,
			bits.Len(uint(hi-lo-1)))
	}
	if hi-lo > 1 {
		for _, t := range turns[lo+1 : hi+1] {
			b.report.Candidates = append(b.report.Candidates, t.Number)
		}
		b.report.Note = "the other turns could not be tested (exit 125)"
		return nil
	}
	for _, t := range b.report.Tests {
		if t.Number == turns[hi].Number && notStarted(t.ExitCode) {
			b.report.Note = fmt.Sprintf("exit %d means that a program is missing or cannot be started; "+
				"for a line of shell, use -- sh -c 'LINE'", *t.ExitCode)
		}
	}
	return b.found(ctx, turns[hi])
}

// notStarted reports whether an exit status says that a program could not be started.
func notStarted(code *int) bool { return code != nil && (*code == 126 || *code == 127) }

// middle returns the index between lo and hi that is nearest to the middle and not skipped.
func middle(lo, hi int, skipped map[int]bool) (int, bool) {
	mid := (lo + hi) / 2
	for d := range hi - lo {
		for _, i := range []int{mid - d, mid + d} {
			if i > lo && i < hi && !skipped[i] {
				return i, true
			}
		}
	}
	return 0, false
}

// found reports the turn t.
func (b *bisection) found(ctx context.Context, t turnstone.Turn) error {
	const most = 100
	b.report.Found = true
	b.report.Turn = &turnstone.BisectTurn{ID: t.ID, Number: t.Number, Title: t.Title}
	if t.State == "" {
		return nil
	}
	d, err := b.host.Repo.Diff(ctx, turnstone.DiffRequest{From: string(t.ID)})
	if err != nil {
		return err
	}
	b.report.Turn.Files = d.Files[:min(most, len(d.Files))]
	b.report.Turn.More = len(d.Files) - len(b.report.Turn.Files)
	return nil
}

// test runs the command on the state of t. Its exit status means what git bisect run says.
func (b *bisection) test(ctx context.Context, t turnstone.Turn) (verdict string, err error) {
	var out tail
	req := b.Command
	req.On, req.Stdout, req.Stderr = string(t.ID), &out, &out
	code, err := command.Run(ctx, b.host, req, b.preparing)
	if kind := turnstone.KindOf(err); err != nil && opOf(err) == wire.MethodProcessStart &&
		(kind == turnstone.KindNotFound || kind == turnstone.KindInvalid) {
		fmt.Fprintln(&out, err)
		code, err = map[bool]int{true: 127, false: 126}[kind == turnstone.KindNotFound], nil
	}
	if err != nil {
		return "", err
	}
	switch {
	case code == 0:
		verdict = good
	case code == 125:
		verdict = skip
	case code > 127:
		return "", fail(turnstone.KindUnavailable, b.Command.Argv[0],
			"the statuses 1 to 124, 126 and 127 mean bad, 125 means skip",
			"ended with status %d on turn %d, which ends the search", code, t.Number)
	default:
		verdict = bad
	}
	b.report.Tests = append(b.report.Tests, turnstone.BisectTest{Number: t.Number,
		Verdict: verdict, ExitCode: &code, Output: out.String()})
	return verdict, nil
}

func (b *bisection) preparing(what string) {
	if b.obs != nil {
		b.obs.Preparing(what)
	}
}

// last returns the last test.
func (b *bisection) last() turnstone.BisectTest {
	return b.report.Tests[len(b.report.Tests)-1]
}

// byReplay searches the first turn whose replay differs from its record. Each turn is replayed on
// its recorded parent, so a difference says nothing about other turns: all are replayed in order.
func (b *bisection) byReplay(ctx context.Context, turns []turnstone.Turn) error {
	cs, err := b.host.Context(ctx)
	if err != nil {
		return err
	}
	for i, t := range turns {
		if t.Kind != turnstone.TurnKindRun {
			b.report.Tests = append(b.report.Tests, turnstone.BisectTest{Number: t.Number,
				Verdict: skip})
			continue
		}
		rep, err := replay.Run(ctx, b.runner, cs, string(t.ID), b.Options, b.obs)
		if err != nil {
			return err
		}
		v := map[bool]string{true: same, false: differs}[rep.Same]
		b.report.Tests = append(b.report.Tests,
			turnstone.BisectTest{Number: t.Number, Verdict: v})
		b.tell("turn %d: %s; turns that remain: %d", t.Number, v, len(turns)-i-1)
		if !rep.Same {
			b.report.Replay = rep
			return b.found(ctx, t)
		}
	}
	b.report.Note = "no replay differs"
	return nil
}

// opOf returns the operation of an error.
func opOf(err error) turnstone.Op {
	var e *turnstone.Error
	if errors.As(err, &e) {
		return e.Op
	}
	return ""
}

// A tail keeps the end of the outputs of a command.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const maxTail = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-maxTail):]
	return len(p), nil
}

func (t *tail) String() string { return string(t.b) }
