package topcmd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/sandboxes"
)

// A remoteSource watches a host.
type remoteSource struct {
	server *remote.Server

	mu        sync.Mutex
	turns     map[string]TopTurn
	sandboxes map[string]TopSandbox
}

// maxObjects bounds what is kept of a host's answers, of each kind.
const maxObjects = 10_000

// Waits between two connections.
const (
	firstRetry = time.Second
	lastRetry  = 10 * time.Second
)

// once implements source.
func (r *remoteSource) once(ctx context.Context) (*Report, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err := r.watch(ctx, func(synced bool) {
		if synced {
			stop()
		}
	})
	if err != nil && !errors.Is(err, errSynced) {
		return nil, err
	}
	return r.report(), nil
}

// errSynced is the end of a watch that was stopped when all was known.
var errSynced = errors.New("all is known")

// follow implements source. A connection that is lost is made again.
func (r *remoteSource) follow(ctx context.Context, show func(*Report, error)) error {
	wait := firstRetry
	for {
		known := false
		err := r.watch(ctx, func(synced bool) {
			if known = known || synced; known {
				wait = firstRetry
				show(r.report(), nil)
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		show(r.report(), err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// watch watches turns and sandboxes until ctx or a connection ends. changed is called after each
// change, with whether both lists are complete by now; calls do not overlap.
func (r *remoteSource) watch(ctx context.Context, changed func(synced bool)) error {
	r.mu.Lock()
	r.turns, r.sandboxes = map[string]TopTurn{}, map[string]TopSandbox{}
	r.mu.Unlock()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var one sync.Mutex // of changed
	lists, all := 0, false
	tell := func(synced bool) {
		one.Lock()
		defer one.Unlock()
		if synced {
			lists++
		}
		all = lists >= 2
		changed(all)
	}
	errs := make(chan error, 2)
	go func() {
		errs <- r.server.WatchTurns(watching, remote.Watcher[remote.WatchedTurn]{
			Set:    func(id string, t remote.WatchedTurn) { put(r, r.turns, id, turnOf(t)); tell(false) },
			Drop:   func(id string) { drop(r, r.turns, id); tell(false) },
			Synced: func() { tell(true) }})
		stop()
	}()
	go func() {
		errs <- r.server.AllSandboxes().Watch(watching, remote.Watcher[sandboxes.Info]{
			Set:    func(id string, i sandboxes.Info) { put(r, r.sandboxes, id, sandboxOf(i)); tell(false) },
			Drop:   func(id string) { drop(r, r.sandboxes, id); tell(false) },
			Synced: func() { tell(true) }})
		stop()
	}()
	first := <-errs
	<-errs
	one.Lock()
	defer one.Unlock()
	if ctx.Err() != nil && all {
		return errSynced
	}
	return first
}

func put[T any](r *remoteSource, to map[string]T, id string, one T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := to[id]; known || len(to) < maxObjects {
		to[id] = one
	}
}

func drop[T any](r *remoteSource, from map[string]T, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(from, id)
}

func (r *remoteSource) report() *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := newReport()
	out.Turns = slices.AppendSeq(out.Turns, maps.Values(r.turns))
	out.Sandboxes = slices.AppendSeq(out.Sandboxes, maps.Values(r.sandboxes))
	out.sort()
	return out
}

func turnOf(t remote.WatchedTurn) TopTurn {
	out := TopTurn{ID: string(t.ID), Ticket: t.Ticket, Session: t.Session, Number: t.Number,
		State: "reserved", Since: t.Since, Node: t.Node}
	if t.Running {
		out.State = "running"
	}
	return out
}

func sandboxOf(i sandboxes.Info) TopSandbox {
	out := TopSandbox{ID: string(i.ID), Name: i.Name, Image: i.Image, State: string(i.State),
		Since: i.Created, Where: i.Isolation, CPUs: i.Shape.CPUs, Memory: i.Shape.Memory}
	if i.Paused {
		out.State = "paused"
	}
	if i.Session != nil {
		out.Session = i.Session.Name
	}
	return out
}
