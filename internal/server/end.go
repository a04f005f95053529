package server

import (
	"context"
	"sync"
	"time"
)

// linger is how long clients may take to read the last answers after all turns have ended.
const linger = 3 * time.Second

// drain waits for running turns, or without a node for the channels of callers, within limits.end
// and until now ends.
func (s *Server) drain(now context.Context, answering *sync.WaitGroup) {
	ctx, cancel := context.WithTimeout(now, s.c.Limits.End)
	defer cancel()
	if s.node != nil {
		if s.node.Drain(ctx) != nil {
			s.log.Warn("running turns are interrupted")
			return
		}
		// channels may stay open for hours; turns have ended
		ctx, cancel = context.WithTimeout(now, linger)
		defer cancel()
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		answering.Wait()
	}()
	select {
	case <-left:
	case <-ctx.Done():
	}
}
