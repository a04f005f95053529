package provision

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/template/builtin"
)

// A Base is the turn on whose state a sandbox starts. The zero Base is the template.
type Base struct {
	Context *repo.ContextStore   // may be nil if Parent is nil
	Parent  *turnstone.Turn      // nil: the template
	State   *turnstone.TurnState // the parent's state
}

// On returns the base that the turn t is; nil stands for the template.
func On(ctx context.Context, cs *repo.ContextStore, t *turnstone.Turn) (Base, error) {
	base := Base{Context: cs, Parent: t}
	var err error
	if t != nil {
		if base.Context, err = cs.In(ctx, t.Domain); err == nil {
			base.State, err = base.Context.State(ctx, t.State)
		}
	}
	return base, err
}

// Named returns the base that ref names; an empty ref stands for the template.
func Named(ctx context.Context, h *host.Host, ref string) (Base, error) {
	if ref == "" {
		return Base{}, nil
	}
	cs, err := h.Context(ctx)
	if err != nil {
		return Base{}, err
	}
	cs, t, err := cs.Resolve(ctx, ref)
	if err != nil {
		return Base{}, err
	}
	return On(ctx, cs, &t)
}

// Below returns the values that the plan of a session's turn inherits; nil: the turn starts from
// its template.
func (b Base) Below(s turnstone.Session) *plan.Below {
	if b.State == nil {
		return nil
	}
	return &plan.Below{Session: s.Label(), Image: b.State.Image, Cwd: b.State.Cwd,
		FSHash: b.State.Tree.Hash, Env: b.State.Env}
}

// A Stopwatch records the phases of a turn.
type Stopwatch struct {
	last   time.Time
	Phases []turnstone.Phase
}

// NewStopwatch returns a running stopwatch.
func NewStopwatch() *Stopwatch { return &Stopwatch{last: time.Now()} }

// Lap ends the phase name.
func (w *Stopwatch) Lap(name string) {
	now := time.Now()
	took := now.Sub(w.last)
	w.last = now
	w.Phases = append(w.Phases, turnstone.Phase{Name: name, Took: turnstone.Millis(took)})
}

// Quietly returns tell, or a function without effect if tell is nil.
func Quietly(tell func(string)) func(string) {
	if tell == nil {
		return func(string) {}
	}
	return tell
}

// ImageWith returns an image other than image that has program; empty: no such image is known.
func ImageWith(image, program string) string { return builtin.OtherWithProgram(image, program) }
