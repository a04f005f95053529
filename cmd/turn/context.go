package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/sandboxes"
)

// withExecutor calls f with an executor and a context that the user can end.
func (a *app) withExecutor(f func(ctx context.Context, x *executor.Executor) error) error {
	ctx, stop := interruptible(func(s string) { putln(a.stderr, "turn: "+s) }, exitAborted)
	defer stop()
	x, err := a.open(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(f(ctx, x), x.Close())
	var exit *exitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return &exitError{codeOf(err), err}
}

// stateDir opens the state directory.
func (a *app) stateDir() (*statedir.Dir, error) { return statedir.Open(a.env.Dir) }

// open returns an executor whose holder is this program, by a path that an update of its
// file does not change.
func (a *app) open(ctx context.Context) (*executor.Executor, error) {
	o := a.env.Options
	o.Holder = holder
	return executor.Open(ctx, o)
}

// holder keeps sandboxes. The path is that of the running program, whatever becomes of its file.
var holder = sandboxes.Holder{Path: "/proc/self/exe", Args: []string{"turn", "sandbox", "hold"}}

// sandboxes returns the sandboxes of h.
func (a *app) sandboxes(h *statedir.Dir) *sandboxes.Store {
	s := sandboxes.NewStore(h)
	s.Holder = holder
	return s
}

// withRefs is withExecutor for a command whose arguments refs name sessions or turns. What
// stands for the session at hand is replaced; if all goes well, and also when the command
// says no by its exit status alone, the session that the first one names is the one at hand.
func (a *app) withRefs(refs []*string, f func(ctx context.Context, x *executor.Executor) error) error {
	return a.withExecutor(func(ctx context.Context, x *executor.Executor) error {
		given := *refs[0]
		if err := a.expand(ctx, x, refs...); err != nil {
			return err
		}
		err := f(ctx, x)
		var exit *exitError
		if err == nil || errors.As(err, &exit) && exit.err == nil {
			x.NoteUse(ctx, given)
		}
		return err
	})
}

// expand replaces what stands for the session at hand.
func (a *app) expand(ctx context.Context, x *executor.Executor, refs ...*string) (err error) {
	for _, ref := range refs {
		if *ref, err = x.Expand(ctx, *ref, a.env.session); err != nil {
			return err
		}
	}
	return nil
}

// shortID is as much of a turn's ID as tells it from others in practice: the time
// in milliseconds, and a little of what is random.
func shortID(id turnstone.TurnID) string { return string(id)[:min(len(id), 14)] }

// names says which branches end with the turn id, and which tags it has, in
// parentheses, with a space before them; nothing when there are none.
func names(g *session.Graph, id turnstone.TurnID) string {
	var list []string
	for _, b := range g.Branches {
		if b.Head == id {
			list = append(list, b.Name)
		}
	}
	for _, t := range g.Tags {
		if t.Turn == id {
			list = append(list, "tag: "+t.Name)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// outcome is a turn's result, or what stands for it.
func outcome(t session.Turn) string {
	switch {
	case t.Status == session.StatusRunning:
		return "running"
	case t.Interrupted():
		return "interrupted"
	}
	return string(t.Result)
}

// ago says how long ago something was, for people.
func ago(t, now time.Time) string { return rough(now.Sub(t)) + " ago" }
