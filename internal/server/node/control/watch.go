package control

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

const (
	maxWatchers = 16
	aliveEvery  = 10 * time.Second
)

// WatchNode lists all objects of the node, then sends their changes. Changes that follow each other
// quickly are merged.
func (s *Service) WatchNode(ctx context.Context, _ *connect.Request[v1.WatchNodeRequest],
	out *connect.ServerStream[v1.WatchNodeResponse]) error {
	w, listed := s.board.watch(maxWatchers)
	if w == nil {
		return exhausted(turnstone.Errorf("node.watch", turnstone.KindExhausted, "the node",
			"has %d watchers, and may have no more", maxWatchers))
	}
	defer s.board.unwatch(w)
	listed = append(listed, &v1.WatchNodeResponse{Event: v1.WatchEvent_WATCH_EVENT_SYNCED})
	for _, d := range listed {
		if err := out.Send(d); err != nil {
			return err
		}
	}
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		for d := s.board.take(w); d != nil; d = s.board.take(w) {
			if err := out.Send(d); err != nil {
				return err
			}
		}
		select {
		case <-w.wake:
		case <-alive.C:
			d := &v1.WatchNodeResponse{Event: v1.WatchEvent_WATCH_EVENT_ALIVE}
			if err := out.Send(d); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return turnstone.Errorf("node.watch", turnstone.KindUnavailable, "the node", "stops")
		}
	}
}
