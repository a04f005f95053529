package turns

import "context"

// Drain starts no more turns, and waits until the running ones have ended and who reads them has
// read the end. The error is that of ctx.
func (s *Service) Drain(ctx context.Context) error {
	idle := make(chan struct{})
	s.mu.Lock()
	s.closed = true
	if len(s.running) == 0 {
		close(idle)
	} else {
		s.idle = append(s.idle, idle)
	}
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
