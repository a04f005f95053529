package topcmd

import (
	"context"
	"errors"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/sandboxes"
)

// A localSource reads the state directory of this machine.
type localSource struct {
	sessions  sessions
	sandboxes sandboxList
}

// sessions are the sessions of an executor.
type sessions interface {
	Sessions(ctx context.Context) ([]turnstone.SessionInfo, error)
	Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error)
}

// A sandboxList lists sandboxes: see sandboxes.Store.
type sandboxList interface {
	List(ctx context.Context) ([]sandboxes.Info, error)
}

func openLocal(ctx context.Context, a *cli.App) (source, func(), error) {
	s, err := a.OpenSandboxes(ctx)
	if err != nil {
		return nil, nil, err
	}
	x, err := a.OpenLocal(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &localSource{x, s}, func() { _ = x.Close() }, nil
}

// once implements source.
func (l *localSource) once(ctx context.Context) (*Report, error) {
	out := newReport()
	infos, err := l.sandboxes.List(ctx)
	used := usage(infos)
	for _, i := range infos {
		if i.State.Final() {
			continue
		}
		s := sandboxOf(i)
		if u, ok := used[i.ID]; ok {
			s.CPUTime, s.Used = turnstone.Millis(u.cpu), u.memory
		}
		out.Sandboxes = append(out.Sandboxes, s)
	}
	all, failed := l.sessions.Sessions(ctx)
	err = errors.Join(err, failed)
	for _, s := range all {
		if s.Running == 0 {
			continue
		}
		g, failed := l.sessions.Session(ctx, string(s.ID))
		if turnstone.KindOf(failed) == turnstone.KindNotFound {
			continue // it was removed meanwhile
		}
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		for _, t := range g.Turns {
			if t.Status == turnstone.TurnRunning {
				out.Turns = append(out.Turns, TopTurn{ID: string(t.ID), Session: s.Label(),
					Number: t.Number, State: string(t.Status), Since: t.Started})
			}
		}
	}
	out.sort()
	return out, err
}

// follow implements source.
func (l *localSource) follow(ctx context.Context, show func(*Report, error)) error {
	t := time.NewTicker(redraw)
	defer t.Stop()
	for {
		r, err := l.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		show(r, err)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// A use is what the processes of a sandbox use.
type use struct {
	cpu    time.Duration
	memory turnstone.Bytes
}
