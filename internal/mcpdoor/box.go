package mcpdoor

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
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

// A box is the sandbox of a branch. Calls that use it share its lock; a call that ends it, or that
// adds a turn to its branch, has the lock alone. The boxes guard all other fields.
type box struct {
	lock *semaphore.Weighted
	made chan struct{}       // holds one value while nobody makes a sandbox
	id   turnstone.SandboxID // empty: there is none; set by who makes it, or has the whole lock
	used bool                // since its last turn
	by   *connection         // that used the sandbox last; nil: it is no longer admitted
	held int                 // calls that use the box
	last time.Time           // when a call used it
}

// boxes are the sandboxes of a connection, or of a caller whose calls have no connection. They are
// safe for concurrent use.
type boxes struct {
	most int // sandboxes at one time

	mu     sync.Mutex
	ended  bool
	making int // sandboxes that have no ID yet
	all    map[target]*box
}

func newBoxes(most int) *boxes { return &boxes{most: most, all: map[target]*box{}} }

// maxBranches bounds the branches whose sandboxes are used, or waited for, at one time.
const maxBranches = 1000

// hold returns the box of a branch, which the caller gives back with drop.
func (s *boxes) hold(t target) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errClosed
	}
	b := s.all[t]
	if b == nil {
		if len(s.all) >= maxBranches {
			return nil, turnstone.Errorf("mcp.sandbox", turnstone.KindExhausted, "the connection",
				"uses %d branches", maxBranches).WithHint("wait for the answers of other calls")
		}
		b = &box{lock: semaphore.NewWeighted(users), made: make(chan struct{}, 1), last: time.Now()}
		b.made <- struct{}{}
		s.all[t] = b
	}
	b.held++
	return b, nil
}

// drop gives a box back. One that nobody uses, and has no sandbox, is forgotten.
func (s *boxes) drop(t target, b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.last = time.Now()
	if b.held--; b.held == 0 && b.id == "" {
		delete(s.all, t)
	}
}

// begin reserves the place of a sandbox, which made or failed follows.
func (s *boxes) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.making + s.count(); n >= s.most {
		return turnstone.Errorf("mcp.sandbox", turnstone.KindExhausted, "the connection",
			"has %d sandboxes", n).WithHint("name the session of an earlier call to use its sandbox, " +
			"or end one: run_turn or merge on its branch does that")
	}
	s.making++
	return nil
}

// began ends a reservation: the box has a sandbox, or none if the ID is empty.
func (s *boxes) began(b *box, id turnstone.SandboxID, by *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making--
	b.id, b.by = id, by
}

// count returns the number of sandboxes.
func (s *boxes) count() (n int) {
	for _, b := range s.all {
		if b.id != "" {
			n++
		}
	}
	return n
}

// working reports whether there is a sandbox.
func (s *boxes) working() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.making+s.count() > 0
}

// forget notes that a box has no sandbox.
func (s *boxes) forget(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.id = ""
}

// extend extends the time of all sandboxes. One that cannot be extended ends by itself, with a turn.
func (s *boxes) extend(ctx context.Context, log *slog.Logger) {
	by := map[turnstone.SandboxID]*connection{}
	s.mu.Lock()
	for _, b := range s.all {
		if b.id != "" && b.by != nil && b.by.place.Extend != nil {
			by[b.id] = b.by
		}
	}
	s.mu.Unlock()
	var calls sync.WaitGroup // one sandbox that does not answer must not end the others
	for id, c := range by {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, leaseEvery)
			defer cancel()
			err := c.place.Extend(ctx, id, leaseLife)
			if err != nil && ctx.Err() == nil && turnstone.KindOf(err) != turnstone.KindNotFound {
				log.Warn("the time of a sandbox was not extended", "sandbox", id, "error", err)
			}
		})
	}
	calls.Wait()
}

// close ends all sandboxes, whose work becomes turns.
func (s *boxes) close(log *slog.Logger) {
	s.mu.Lock()
	s.ended = true
	all := maps.Clone(s.all)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	var ends sync.WaitGroup
	for t, b := range all {
		ends.Go(func() {
			err := b.lock.Acquire(ctx, users)
			if err == nil {
				err = s.end(ctx, b)
				b.lock.Release(users)
			}
			if err != nil {
				log.Warn("a sandbox stays until its time is up", "session", t.session,
					"branch", t.branch, "error", err)
			}
		})
	}
	ends.Wait()
}

// usedBy reports whether a connection used a sandbox last.
func (s *boxes) usedBy(c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.all {
		if b.by == c && b.id != "" {
			return true
		}
	}
	return false
}

// abandon notes that a connection may use no sandbox any more: another one has to, or they end by
// themselves.
func (s *boxes) abandon(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.all {
		if b.by == c {
			b.by = nil
		}
	}
}

// endSilent ends the sandboxes that no call used since a time.
func (s *boxes) endSilent(since time.Time, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	silent := map[target]*box{}
	s.mu.Lock()
	for t, b := range s.all {
		if b.silent(since) {
			b.held++
			silent[t] = b
		}
	}
	s.mu.Unlock()
	var ends sync.WaitGroup
	for t, b := range silent {
		ends.Go(func() {
			defer s.drop(t, b)
			if !b.lock.TryAcquire(users) {
				return // a call uses it
			}
			defer b.lock.Release(users)
			s.mu.Lock()
			still := b.silent(since)
			s.mu.Unlock()
			if !still {
				return
			}
			if err := s.end(ctx, b); err != nil {
				log.Warn("a silent sandbox stays until its time is up", "session", t.session,
					"branch", t.branch, "error", err)
			}
		})
	}
	ends.Wait()
}

// silent reports whether no call used the sandbox of a box since a time. One that nobody may use has
// had the time to end by itself.
func (b *box) silent(since time.Time) bool {
	return b.last.Before(since) && (b.by != nil || time.Since(b.last) > leaseLife)
}

// end ends the sandbox of a box, which the caller has alone, for the connection that used it last.
func (s *boxes) end(ctx context.Context, b *box) error {
	s.mu.Lock()
	by := b.by
	if by == nil {
		b.id = "" // it ends by itself
	}
	s.mu.Unlock()
	if by == nil {
		return nil
	}
	return by.end(ctx, b)
}

// use calls f with the sandbox of a branch, which it makes if there is none.
func (c *connection) use(ctx context.Context, t target, image string, tell func(string),
	f func(turnstone.SandboxID) error) error {
	b, err := c.boxes.hold(t)
	if err != nil {
		return err
	}
	defer c.boxes.drop(t, b)
	if err := b.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer b.lock.Release(1)
	id, err := c.ensure(ctx, b, t, image, tell)
	if err != nil {
		return err
	}
	c.boxes.mu.Lock()
	b.used, b.by = true, c
	c.boxes.mu.Unlock()
	return f(id)
}

// ensure returns the sandbox of a box that the caller uses: of an image, unless that is empty.
func (c *connection) ensure(ctx context.Context, b *box, t target, image string,
	tell func(string)) (turnstone.SandboxID, error) {
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
			return b.id, hasImage(i, image)
		case err != nil && turnstone.KindOf(err) != turnstone.KindNotFound:
			return "", err
		}
		c.boxes.forget(b) // its time was up, or somebody removed it: its work is a turn
	}
	if err := c.boxes.begin(); err != nil {
		return "", err
	}
	id, err := c.create(ctx, t, image, tell)
	c.boxes.began(b, id, c)
	return id, err
}

// create creates the sandbox of a branch.
func (c *connection) create(ctx context.Context, t target, image string, tell func(string)) (
	turnstone.SandboxID, error) {
	shape, err := c.place.Sandboxes.Shape(ctx, image, nil)
	if err != nil {
		return "", err
	}
	i, err := c.place.Sandboxes.Create(ctx, sandboxes.Spec{Session: t.session, Branch: t.branch,
		Image: image, Shape: shape, Substrate: "auto", TTL: c.life(), Stranger: image != ""}, tell)
	return i.ID, err
}

// shortImage returns an image of a registry as people write it: without its digest and the names that
// Docker adds.
func shortImage(image string) string {
	name, _, _ := strings.Cut(image, "@")
	return strings.TrimPrefix(strings.TrimPrefix(name, "docker.io/"), "library/")
}

// hasImage reports a sandbox of another image.
func hasImage(i sandboxes.Info, image string) error {
	if image == "" || image == i.Image || shortImage(image) == shortImage(i.Image) {
		return nil
	}
	return turnstone.Errorf("mcp.sandbox", turnstone.KindInvalid, "image "+brief.Subject(image),
		"the session's sandbox is of %s", i.Image).
		WithHint("leave image out, or name a new session")
}

// life is the time of a sandbox, unless it is extended.
func (c *connection) life() time.Duration {
	if c.place.Extend != nil {
		return leaseLife
	}
	return boxLife
}

// alone calls f while no other call uses the sandbox of a branch.
func (c *connection) alone(ctx context.Context, t target, f func(*box) error) error {
	b, err := c.boxes.hold(t)
	if err != nil {
		return err
	}
	defer c.boxes.drop(t, b)
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
	c.boxes.forget(b)
	return nil
}

// commit keeps the work in the sandbox of a branch as a turn; nil: nothing was done.
func (c *connection) commit(ctx context.Context, t target) (report *turnstone.TurnReport, err error) {
	b, err := c.boxes.hold(t)
	if err != nil {
		return nil, err
	}
	defer c.boxes.drop(t, b)
	if err := b.lock.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer b.lock.Release(1)
	c.boxes.mu.Lock()
	id, used := b.id, b.used
	b.used = false
	c.boxes.mu.Unlock()
	if id == "" || !used {
		return nil, nil
	}
	report, err = c.place.Sandboxes.Commit(ctx, id)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, nil
	}
	if err != nil {
		c.boxes.mu.Lock()
		b.used = true
		c.boxes.mu.Unlock()
	}
	return report, err
}
