package bisect

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/replay"
)

// A pair runs the document of a turn twice, whole or cut, and compares.
type pair struct {
	*bisection
	cs    *repo.ContextStore
	old   turnstone.Turn
	rec   *turnstone.TurnRecord
	units []unit
	tier  turnstone.Tier // empty: the runs are not deterministic
	runs  int
	about int // how many runs there will be, as far as is known
	later int // how many of them follow the first pair
	hold  *repo.Hold
}

// A difference of two runs that end after the same command.
type difference struct {
	a, b *turnstone.TurnRecord
	rep  *turnstone.ReplayReport
}

// within searches the first command of a turn that differs in two runs.
func (b *bisection) within(ctx context.Context, cs *repo.ContextStore, old turnstone.Turn) error {
	opts := b.Options
	opts.Tier = "" // it is that of the search
	b.tell("run 1: the replay of turn %d", old.Number)
	first, err := replay.Run(ctx, b.runner, cs, string(old.ID), opts, b.obs)
	if err != nil {
		return err
	}
	b.report.Turn = &turnstone.BisectTurn{ID: old.ID, Number: old.Number, Title: old.Title}
	if first.Same {
		b.report.Note = "the replay does not differ"
		return nil
	}
	b.report.Replay = first
	p := &pair{bisection: b, cs: cs, old: old, runs: 1}
	if p.hold, err = cs.Hold(ctx); err != nil {
		return err
	}
	defer p.hold.Release()
	if p.rec, err = cs.Record(ctx, old); err != nil {
		return err
	}
	doc, err := replay.Document(ctx, cs, p.rec)
	if err != nil {
		return err
	}
	p.units = units(doc)
	if len(p.units) == 0 {
		b.report.Note = "the turn has no commands"
		return nil
	}
	now, err := cs.ReadRecord(ctx, first.Turn.Record)
	if err != nil {
		return err
	}
	hint, err := p.byTrace(ctx, p.rec, now)
	if err != nil {
		return err
	}
	n := len(p.units)
	if p.later = 2 * bits.Len(uint(n-1)); hint != nil {
		n, p.later = hint.unit+1, 2*min(1, hint.unit)
	}
	d, err := p.chooseTier(ctx, n)
	if err == nil && d == nil && hint != nil {
		p.bySeen(hint, first)
		return nil
	}
	if err != nil {
		return err
	}
	if d == nil {
		b.report.Note = "two new runs are the same: the record has another substrate, template or " +
			"version, or differs in what a tier pins, such as the part of a second in a time"
		return nil
	}
	return p.search(ctx, d, n, hint != nil)
}

// chooseTier runs the document up to the command n twice: under the tier of the options or of the
// recorded turn, else under the first that is possible here, and without one if nothing differs.
// nil: the runs are the same.
func (p *pair) chooseTier(ctx context.Context, n int) (*difference, error) {
	tiers := []turnstone.Tier{p.Options.Tier}
	switch {
	case p.Options.Tier != "":
	case p.rec.Determinism != nil:
		tiers[0] = p.rec.Determinism.Tier
	default:
		// A run of the tier strict is slow, so it stands in only where seeded is not possible.
		tiers = []turnstone.Tier{turnstone.TierSeeded, turnstone.TierStrict, ""}
	}
	var last error
	for i, tier := range tiers {
		if i > 0 && last == nil && tier != "" {
			continue // the runs of a tier were the same: another tier shows no more
		}
		p.tier, last = tier, nil
		p.about = p.runs + 2 + p.later
		d, err := p.diff(ctx, n)
		var known *turnstone.Error
		if errors.As(err, &known) && known.Kind != turnstone.KindCanceled && ctx.Err() == nil {
			last = err
			p.tell("%s is not possible: %v", cmp.Or(string(tier), "a run"), err)
			continue // this tier is not available, or refuses what the turn needs
		}
		if err != nil || d != nil {
			return d, err
		}
	}
	return nil, last
}

// search finds the first command after which the two runs differ. At lo they are the same, at hi
// they differ, as at says. hinted: hi is the command that a trace names, so the one before it is
// tested first.
func (p *pair) search(ctx context.Context, at *difference, hi int, hinted bool) error {
	for lo := 0; hi-lo > 1; {
		mid := (lo + hi) / 2
		if p.about = p.runs + 2*bits.Len(uint(hi-lo-1)); hinted {
			mid, hinted, p.about = hi-1, false, p.runs+2
		}
		d, err := p.diff(ctx, mid)
		if err != nil {
			return err
		}
		v := same
		if d != nil {
			v, hi, at = differs, mid, d
		} else {
			lo = mid
		}
		p.report.Tests = append(p.report.Tests, turnstone.BisectTest{Number: mid, Verdict: v})
		p.tell("command %d of %d: %s; pairs of runs that remain: about %d", mid, len(p.units), v,
			bits.Len(uint(hi-lo-1)))
	}
	u := p.units[hi-1]
	step := &at.a.Steps[u.step]
	p.report.Found = true
	c := p.command(hi-1, step.Name)
	c.Steps, c.Changes, c.Env, c.Cwd = at.rep.Steps, at.rep.Changes, at.rep.Env, at.rep.Cwd
	p.report.Command = c
	for _, stream := range streams {
		old, err := p.output(ctx, stream.of(step))
		if err != nil {
			return err
		}
		now, err := p.output(ctx, stream.of(&at.b.Steps[u.step]))
		if err != nil {
			return err
		}
		if old != now {
			c.Old, c.New = fromDifference(old, now)
			break
		}
	}
	return nil
}

// command describes the unit n of the step called step.
func (p *pair) command(n int, step string) *turnstone.BisectCommand {
	u := p.units[n]
	return &turnstone.BisectCommand{Step: step, Line: u.line, Text: brief.Clip(u.text, 1000),
		Index: n + 1, Of: len(p.units), Tier: p.tier, Runs: p.runs}
}

const maxOutput = 16 << 20

func (p *pair) output(ctx context.Context, c *turnstone.Content) (string, error) {
	if c == nil || c.Digest == "" || c.Size > maxOutput {
		return "", nil
	}
	b, err := p.cs.Read(ctx, *c, maxOutput)
	return string(b), err
}

// fromDifference returns the ends of two outputs that begin with the first line that differs.
func fromDifference(a, b string) (string, string) {
	at := 0
	for i := 0; i < len(a) && i < len(b) && a[i] == b[i]; i++ {
		if a[i] == '\n' {
			at = i + 1
		}
	}
	const most = 1000
	return brief.Clip(strings.ToValidUTF8(a[at:], "\uFFFD"), most),
		brief.Clip(strings.ToValidUTF8(b[at:], "\uFFFD"), most)
}

// diff runs the document twice up to the command n, and returns how the runs differ; nil: they are
// the same. The runs of a deterministic turn have its seed and clock. Those of any other turn have
// two seeds and two clocks, so that what depends on them differs in every pair, and nothing else.
func (p *pair) diff(ctx context.Context, n int) (*difference, error) {
	var d difference
	opts := p.Options
	opts.Tier = p.tier
	for i, to := range []**turnstone.TurnRecord{&d.a, &d.b} {
		p.tell("run %d of about %d: up to command %d of %d%s", p.runs+1, max(p.about, p.runs+1), n,
			len(p.units), tierText(p.tier))
		now, err := replay.Again(ctx, p.runner, p.cs, p.old, opts, p.hold,
			func(req *plan.Request) {
				cut(req.Document, p.units[n-1])
				p.determine(req, i)
			}, p.obs)
		if err != nil {
			return nil, err
		}
		if now.Result == turnstone.ResultError {
			return nil, fail(turnstone.KindUnavailable, string(now.ID), now.Hint, "%s", now.Error)
		}
		p.runs++
		if *to, err = p.cs.ReadRecord(ctx, now.Record); err != nil {
			return nil, err
		}
		d.rep = &turnstone.ReplayReport{Turn: now, Steps: []turnstone.StepDifference{},
			Changes: []turnstone.FileDifference{}, Env: []string{}}
	}
	if err := replay.Compare(ctx, p.cs, d.a, d.rep); err != nil || d.rep.Same {
		return nil, err
	}
	return &d, nil
}

// tierText names the tier of a run in a line of the progress.
func tierText(t turnstone.Tier) string {
	if t == "" {
		return ", not deterministic"
	}
	return ", " + string(t)
}

// determine sets the seed and the clock of the run i, which is 0 or 1, unless the turn has its own.
func (p *pair) determine(req *plan.Request, i int) {
	if p.tier == "" || p.rec.Determinism != nil {
		return
	}
	seed := uint64(i) + 1
	req.Seed, req.Clock = &seed, turnstone.DefaultClock().Add(time.Duration(i)*1234567*time.Second)
}
