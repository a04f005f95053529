package agent

import (
	"context"
	"sync"

	"turnstone.dev/turnstone/wire"
)

// An activity counts the commands that run: processes that clients have started, and steps.
type activity struct {
	mu      sync.Mutex
	now     commands
	changed chan struct{} // closed at the next change, if there is a follower
	follows map[*wire.Conn]bool
}

type commands struct{ running, started int64 }

func newActivity() *activity { return &activity{follows: make(map[*wire.Conn]bool)} }

func (t *activity) begin() { t.add(commands{1, 1}) }
func (t *activity) end()   { t.add(commands{-1, 0}) }

func (t *activity) add(n commands) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now.running += n.running
	t.now.started += n.started
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// from returns the present numbers, and a channel that is closed at the next change if they are
// those that the caller knows.
func (t *activity) from(known commands) (now commands, next <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == known {
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		next = t.changed
	}
	return t.now, next
}

// Activity implements Sandbox.activity: a goroutine follows the numbers for this connection, and
// blocks nobody.
func (s *sandbox) Activity(ctx context.Context,
	c *wire.Conn) (*wire.SandboxActivityResult, error) {
	t := s.a.activity
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.now
	if !t.follows[c] {
		t.follows[c] = true
		context.AfterFunc(c.Context(), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.follows, c)
		})
		wire.AfterReply(ctx, func() { c.Go(func() { t.follow(c, known) }) })
	}
	return &wire.SandboxActivityResult{Running: known.running, Started: known.started,
		Secrets: s.a.secrets.Follow(c)}, nil
}

func (t *activity) follow(c *wire.Conn, known commands) {
	for {
		now, next := t.from(known)
		if next == nil {
			known = now
			if c.EmitSandboxActivityChanged(c.Context(), &wire.SandboxActivityChangedEvent{
				Running: now.running, Started: now.started}) != nil {
				return
			}
			continue
		}
		select {
		case <-next:
		case <-c.Context().Done():
			return
		}
	}
}
