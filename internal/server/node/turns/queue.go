package turns

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/fair"
)

// A Room reserves room for the machine of a ticket's turn until free is called. The error is of kind
// Exhausted if there is none now.
type Room func(tenant string, t Ticket) (free func(), err error)

// A Queue lets the turns of all tenants of a node wait for a place and for room, in a fair order. It
// is safe for concurrent use.
type Queue struct {
	gate *fair.Gate
	room Room
}

// NewQueue returns a queue. A turn waits for at most wait, and at most waiting turns of a tenant do;
// zero values select the defaults of fair.Limits.
func NewQueue(wait time.Duration, waiting int) *Queue {
	return &Queue{gate: fair.NewGate(fair.Limits{Each: waiting, All: 10 * waiting, Wait: wait})}
}

// Within makes turns wait for room, too. It is called before the first turn.
func (q *Queue) Within(room Room) { q.room = room }

// Wake says that there may be room.
func (q *Queue) Wake() { q.gate.Wake() }

// Waiting returns the number of turns that wait.
func (q *Queue) Waiting() int { return q.gate.Waiting() }

// Share makes the turns of the service, which are those of a tenant, wait in a queue of the node. It
// is called before the first turn.
func (s *Service) Share(q *Queue, tenant string) { s.queue, s.tenant = q, tenant }

// place waits for a place of the tenant and room at the node, until ctx or the service ends. release
// gives both back. The error is of kind Exhausted if the wait was too long.
func (s *Service) place(ctx context.Context, t Ticket) (release func(), err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(s.ctx, func() { end(context.Cause(s.ctx)) })()
	err = s.queue.gate.Enter(ctx, s.tenant, t.Machine.CPUs, func() error {
		select {
		case s.places <- struct{}{}:
		default:
			return fair.Full(turnstone.Errorf("turn.run", turnstone.KindExhausted, "the node",
				"runs %d turns of the tenant, and may run no more", cap(s.places)).
				WithHint("try again later"))
		}
		free := func() {}
		if s.queue.room != nil {
			if free, err = s.queue.room(s.tenant, t); err != nil {
				<-s.places
				if turnstone.KindOf(err) == turnstone.KindExhausted {
					err = fair.Full(err)
				}
				return err
			}
		}
		release = func() {
			<-s.places
			free()
			s.queue.Wake()
		}
		return nil
	})
	return release, err
}
