package main

import (
	"context"
	"errors"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
)

// withExecutor calls f with an executor and a context that the user can cancel.
func (a *app) withExecutor(f func(ctx context.Context, x *executor.Executor) error) error {
	ctx, stop := interruptible(func(s string) { terminal.Println(a.stderr, "turn: "+s) }, exitAborted)
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

// open returns an executor whose holder is this program, by a path that an update of its file does
// not change.
func (a *app) open(ctx context.Context) (*executor.Executor, error) {
	o := a.env.Options
	o.Holder = holder
	return executor.Open(ctx, o)
}

// holder keeps sandboxes. The path is that of the running program, even if its file is replaced.
var holder = sandboxes.Holder{Path: "/proc/self/exe", Args: []string{"turn", "sandbox", "hold"}}

// sandboxes returns the sandboxes of h.
func (a *app) sandboxes(h *statedir.Dir) *sandboxes.Store {
	s := sandboxes.NewStore(h)
	s.Holder = holder
	return s
}

// withRefs is withExecutor for a command whose arguments refs name sessions or turns. It expands
// references to the session at hand; after success, and also if the command reports a negative
// result by its exit status alone, the session of the first reference becomes the session at hand.
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

// expand expands references to the session at hand.
func (a *app) expand(ctx context.Context, x *executor.Executor, refs ...*string) (err error) {
	for _, ref := range refs {
		if *ref, err = x.Expand(ctx, *ref, a.env.session); err != nil {
			return err
		}
	}
	return nil
}

// shortID returns a prefix of a turn's ID that is unique in practice: the time in milliseconds, and
// some of the random part.
func shortID(id turnstone.TurnID) string { return string(id)[:min(len(id), 14)] }

// names returns the branches that end with the turn id, and its tags, in parentheses, with a space
// before them; empty if there are none.
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

// outcome returns a turn's result, or a replacement for a turn without one.
func outcome(t session.Turn) string {
	switch {
	case t.Status == session.StatusRunning:
		return "running"
	case t.Interrupted():
		return "interrupted"
	}
	return string(t.Result)
}
