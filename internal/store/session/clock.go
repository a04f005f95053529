package session

import (
	"context"
	"database/sql"
	"sync"
	"time"
)

// A clock tells a database's time. Machines' clocks differ and jump, and what one notes decides what
// another one deletes: see Prune. Between two answers of the database it counts by a clock that does not
// jump.
type clock struct {
	steady func() time.Time

	mu    sync.Mutex
	at    time.Time // the database's
	asked time.Time // steady, then
}

// Now returns the time by which the database's times count: its own, if several machines use it.
func (db *DB) Now() time.Time { return db.now() }

// set notes the database's time.
func (c *clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.asked = at, c.steady()
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at.Add(c.steady().Sub(c.asked))
}

// read asks the database.
func (c *clock) read(ctx context.Context, q *sql.DB) error {
	var at time.Time
	err := q.QueryRowContext(ctx, "SELECT clock_timestamp()").Scan(&at)
	if err == nil {
		c.set(at)
	}
	return err
}
