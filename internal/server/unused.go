package server

import (
	"context"
	"time"
)

// Bounds of the time between two looks at what uses the server.
const (
	leastLook = 10 * time.Millisecond
	mostLook  = 5 * time.Second
)

// unused returns a channel that is closed when the server had no connection, sandbox or turn for
// limits.unused; nil: it is in use until it is told to end. A connection between two looks counts.
func (s *Server) unused(ctx context.Context, run func(func() error)) <-chan struct{} {
	if s.c.Limits.Unused <= 0 || s.gateway == nil || s.node == nil {
		return nil
	}
	ended := make(chan struct{})
	run(func() error {
		look := time.NewTicker(min(max(s.c.Limits.Unused/20, leastLook), mostLook))
		defer look.Stop()
		last, before := time.Now(), uint64(0)
		for {
			select {
			case <-ctx.Done():
				return nil
			case now := <-look.C:
				open, ever := s.gateway.Connections()
				if open > 0 || ever != before || s.node.Busy() {
					last, before = now, ever
				} else if now.Sub(last) >= s.c.Limits.Unused {
					close(ended)
					return nil
				}
			}
		}
	})
	return ended
}
