package mcpdoor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/sandboxes/access"
)

// Bounds of the sandboxes of a connection.
const (
	maxBoxes = 4
	// boxLife is the time after which a sandbox ends by itself, with a turn, so that it does not stay
	// if nobody is there to end it. The next call makes another one.
	boxLife = 2 * time.Hour
	// leaseLife is boxLife where the connection extends it, every leaseEvery.
	leaseLife  = 10 * time.Minute
	leaseEvery = 3 * time.Minute
	// endTime bounds the end of a connection's sandboxes.
	endTime = 2 * time.Minute
	// users is how many calls use a sandbox at one time.
	users = 32
)

// A target is a branch of a session.
type target struct{ session, branch string }

// A connection is what a client's connection has: a place, and a sandbox for each branch that it
// used.
type connection struct {
	place Place
	log   *slog.Logger
	kept  outputs

	calls  context.Context // ends with the connection
	cancel context.CancelFunc

	mu    sync.Mutex
	ended bool
	boxes map[target]*box
}

// A box is the sandbox of a branch. Calls that use it share its lock; a call that ends it, or that
// adds a turn to its branch, has the lock alone.
type box struct {
	lock *semaphore.Weighted
	id   turnstone.SandboxID // empty: there is none; guarded by making, or by the whole lock
	made chan struct{}       // holds one value while nobody makes a sandbox
	used bool                // since its last turn; guarded by the connection
}

// target returns the branch of a call.
func (c *connection) target(session, branch string) target {
	if session == "" {
		session = c.place.Session
	}
	if branch == "" {
		branch = "main"
	}
	return target{session, branch}
}

// box returns the box of a branch.
func (c *connection) box(t target) (*box, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, errClosed
	}
	b := c.boxes[t]
	if b == nil {
		if len(c.boxes) >= maxBranches {
			return nil, turnstone.Errorf("mcp.sandbox", turnstone.KindExhausted, "the connection",
				"used %d branches", maxBranches).WithHint("connect again")
		}
		b = &box{lock: semaphore.NewWeighted(users), made: make(chan struct{}, 1)}
		b.made <- struct{}{}
		c.boxes[t] = b
	}
	return b, nil
}

// maxBranches bounds the branches that a connection uses.
const maxBranches = 1000

// use calls f with the sandbox of a branch, which it makes if there is none.
func (c *connection) use(ctx context.Context, t target, tell func(string),
	f func(turnstone.SandboxID) error) error {
	b, err := c.box(t)
	if err != nil {
		return err
	}
	if err := b.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer b.lock.Release(1)
	id, err := c.ensure(ctx, b, t, tell)
	if err != nil {
		return err
	}
	c.mu.Lock()
	b.used = true
	c.mu.Unlock()
	return f(id)
}

// ensure returns the sandbox of a box that the caller uses.
func (c *connection) ensure(ctx context.Context, b *box, t target, tell func(string)) (
	turnstone.SandboxID, error) {
	select {
	case <-b.made:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { b.made <- struct{}{} }()
	if b.id != "" {
		i, err := c.place.Sandboxes.Get(b.id)
		switch {
		case err == nil && !i.State.Final():
			return b.id, nil
		case err != nil && turnstone.KindOf(err) != turnstone.KindNotFound:
			return "", err
		}
		c.setID(b, "") // its time was up, or somebody removed it: its work is a turn
	}
	if n := c.count(); n >= maxBoxes {
		return "", turnstone.Errorf("mcp.sandbox", turnstone.KindExhausted, "the connection",
			"has %d sandboxes", n).WithHint("end one: run_turn or merge on its branch does that")
	}
	shape, err := c.place.Sandboxes.Shape(ctx, "", nil)
	if err != nil {
		return "", err
	}
	i, err := c.place.Sandboxes.Create(ctx, sandboxes.Spec{Session: t.session, Branch: t.branch,
		Shape: shape, Substrate: "auto", TTL: c.life()}, tell)
	if err != nil {
		return "", err
	}
	c.setID(b, i.ID)
	return i.ID, nil
}

// life is the time of a sandbox, unless it is extended.
func (c *connection) life() time.Duration {
	if c.place.Extend != nil {
		return leaseLife
	}
	return boxLife
}

// extend extends the time of the connection's sandboxes until its end.
func (c *connection) extend() {
	every := time.NewTicker(leaseEvery)
	defer every.Stop()
	for {
		select {
		case <-c.calls.Done():
			return
		case <-every.C:
			c.extendAll()
		}
	}
}

// extendAll extends the time of all sandboxes. One that cannot be extended ends by itself, with a turn.
func (c *connection) extendAll() {
	c.mu.Lock()
	var ids []turnstone.SandboxID
	for _, b := range c.boxes {
		if b.id != "" {
			ids = append(ids, b.id)
		}
	}
	c.mu.Unlock()
	var calls sync.WaitGroup // one sandbox that does not answer must not end the others
	for _, id := range ids {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(c.calls, leaseEvery)
			defer cancel()
			err := c.place.Extend(ctx, id, leaseLife)
			if err != nil && c.calls.Err() == nil && turnstone.KindOf(err) != turnstone.KindNotFound {
				c.log.Warn("the time of a sandbox was not extended", "sandbox", id, "error", err)
			}
		})
	}
	calls.Wait()
}

func (c *connection) setID(b *box, id turnstone.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.id = id
}

// count returns the number of sandboxes.
func (c *connection) count() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.boxes {
		if b.id != "" {
			n++
		}
	}
	return n
}

// alone calls f while no other call uses the sandbox of a branch.
func (c *connection) alone(ctx context.Context, t target, f func(*box) error) error {
	b, err := c.box(t)
	if err != nil {
		return err
	}
	if err := b.lock.Acquire(ctx, users); err != nil {
		return err
	}
	defer b.lock.Release(users)
	return f(b)
}

// settled calls f after the sandbox of a branch has ended with a turn, if there was work in it, so
// that the next turn follows that one.
func (c *connection) settled(ctx context.Context, t target, f func() error) error {
	return c.alone(ctx, t, func(b *box) error {
		if err := c.end(ctx, b); err != nil {
			return err
		}
		return f()
	})
}

// end removes the sandbox of a box that the caller has alone. Its work becomes a turn.
func (c *connection) end(ctx context.Context, b *box) error {
	if b.id == "" {
		return nil
	}
	err := c.place.Sandboxes.Remove(ctx, b.id)
	if err != nil && !access.Gone(err, c.place.Sandboxes.Get, b.id) {
		return err
	}
	c.setID(b, "")
	return nil
}

// commit keeps the work in the sandbox of a branch as a turn; nil: nothing was done.
func (c *connection) commit(ctx context.Context, t target) (report *turnstone.TurnReport, err error) {
	b, err := c.box(t)
	if err != nil {
		return nil, err
	}
	if err := b.lock.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer b.lock.Release(1)
	c.mu.Lock()
	id, used := b.id, b.used
	b.used = false
	c.mu.Unlock()
	if id == "" || !used {
		return nil, nil
	}
	report, err = c.place.Sandboxes.Commit(ctx, id)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, nil
	}
	if err != nil {
		c.mu.Lock()
		b.used = true
		c.mu.Unlock()
	}
	return report, err
}

// close ends the connection's sandboxes, whose work becomes turns, and frees the place.
func (c *connection) close() {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	c.mu.Lock()
	c.ended = true
	boxes := c.boxes
	c.mu.Unlock()
	var ends sync.WaitGroup
	for t, b := range boxes {
		ends.Go(func() {
			err := b.lock.Acquire(ctx, users)
			if err == nil {
				err = c.end(ctx, b)
			}
			if err != nil {
				c.log.Warn("a sandbox stays until its time is up", "session", t.session,
					"branch", t.branch, "error", err)
			}
		})
	}
	ends.Wait()
	if c.place.Close != nil {
		if err := c.place.Close(); err != nil {
			c.log.Warn("the connection's place", "error", err)
		}
	}
}
