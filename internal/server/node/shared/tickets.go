package shared

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/pg"
)

// A Ticket is a turn that runs at a node, or ran at one that was lost. It stays until the turn has ended.
type Ticket struct {
	ID            string
	Turn          turnstone.TurnID
	Node          string
	Ticket, Begun []byte
	Attempt       int  // from 0; whoever takes the ticket over adds one
	Cancelled     bool // it does not start again
	Started       time.Time
}

const op turnstone.Op = "turn.share"

// unlocked is the condition for a ticket whose node is silent and whose turn has no lease.
const unlocked = ` seen < clock_timestamp() - make_interval(secs => $1) AND NOT EXISTS
	(SELECT 1 FROM leases WHERE leases.name = tickets.turn AND expires > clock_timestamp())`

// PutTicket stores a ticket, durably, in place of what an attempt of the same node to begin it has left.
// The error is of kind Unavailable if another node has it.
func (db *DB) PutTicket(ctx context.Context, t Ticket) error {
	res, err := db.pool.ExecContext(ctx, `INSERT INTO tickets (id, turn, node, ticket, begun, attempt,
		cancelled, started, seen) VALUES ($1, $2, $3, $4, $5, 0, FALSE, $6, clock_timestamp())
		ON CONFLICT (id) DO UPDATE SET turn = excluded.turn, ticket = excluded.ticket,
		begun = excluded.begun, started = excluded.started, seen = excluded.seen
		WHERE tickets.node = excluded.node AND tickets.attempt = 0`,
		t.ID, t.Turn, t.Node, t.Ticket, t.Begun, t.Started)
	if mine, err := changed(res, t.ID, err); err != nil || mine {
		return err
	}
	return turnstone.Errorf(op, turnstone.KindUnavailable, "ticket "+t.ID, "another node has it").
		WithHint("see the turn's result with turn log, and run it again if there is none")
}

// Seen notes that this node runs its tickets, and returns the attempts of those that it still has.
func (db *DB) Seen(ctx context.Context, node string, ids []string) (map[string]int, error) {
	return db.attempts(ctx, `UPDATE tickets SET seen = clock_timestamp() WHERE node = $1 AND id = ANY($2)
		RETURNING id, attempt`, node, ids)
}

// Tickets returns the attempts of those tickets that are a node's.
func (db *DB) Tickets(ctx context.Context, node string, ids []string) (map[string]int, error) {
	return db.attempts(ctx, "SELECT id, attempt FROM tickets WHERE node = $1 AND id = ANY($2)", node, ids)
}

// Ticket returns the encoded ticket; nil: there is none.
func (db *DB) Ticket(ctx context.Context, id string) (text []byte, err error) {
	err = db.pool.QueryRowContext(ctx, "SELECT ticket FROM tickets WHERE id = $1", id).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return text, pg.Error(op, id, err)
}

// HasTicket reports whether there is a ticket.
func (db *DB) HasTicket(ctx context.Context, id string) (has bool, err error) {
	err = db.pool.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM tickets WHERE id = $1)", id).Scan(&has)
	return has, pg.Error(op, id, err)
}

func (db *DB) attempts(ctx context.Context, text string, args ...any) (map[string]int, error) {
	rows, err := db.pool.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, pg.Error(op, db.schema, err)
	}
	defer func() { _ = rows.Close() }()
	all := map[string]int{}
	for rows.Next() {
		var id string
		var attempt int
		if err := rows.Scan(&id, &attempt); err != nil {
			return nil, pg.Error(op, db.schema, err)
		}
		all[id] = attempt
	}
	return all, pg.Error(op, db.schema, rows.Err())
}

// LostTickets returns the tickets whose nodes are silent, and whose turns have no lease: what they did is
// over.
func (db *DB) LostTickets(ctx context.Context) ([]Ticket, error) {
	rows, err := db.pool.QueryContext(ctx, `SELECT id, turn, node, ticket, begun, attempt, cancelled,
		started FROM tickets WHERE`+unlocked+` ORDER BY id LIMIT 100`, db.life.Seconds())
	if err != nil {
		return nil, pg.Error(op, db.schema, err)
	}
	defer func() { _ = rows.Close() }()
	var all []Ticket
	for rows.Next() {
		var t Ticket
		if err := rows.Scan(&t.ID, &t.Turn, &t.Node, &t.Ticket, &t.Begun, &t.Attempt, &t.Cancelled,
			&t.Started); err != nil {
			return nil, pg.Error(op, db.schema, err)
		}
		all = append(all, t)
	}
	return all, pg.Error(op, db.schema, rows.Err())
}

// TakeTicket makes a lost ticket that of a node, and reports whether it did: of several nodes one does.
// A ticket that was cancelled meanwhile is not taken.
func (db *DB) TakeTicket(ctx context.Context, t Ticket, node string, started time.Time) (bool, error) {
	res, err := db.pool.ExecContext(ctx, `UPDATE tickets SET attempt = attempt + 1, node = $2,
		started = $5, seen = clock_timestamp() WHERE id = $3 AND attempt = $4 AND cancelled = $6 AND`+
		unlocked, db.life.Seconds(), node, t.ID, t.Attempt, started, t.Cancelled)
	return changed(res, t.ID, err)
}

// CancelTicket notes that the turn of a ticket does not start again, durably. known is false if there is
// no such ticket: the turn has ended, or is none of a node with this database.
func (db *DB) CancelTicket(ctx context.Context, id string) (known bool, err error) {
	res, err := db.pool.ExecContext(ctx, "UPDATE tickets SET cancelled = TRUE WHERE id = $1", id)
	return changed(res, id, err)
}

// EndTicket removes a ticket whose turn has ended in this attempt at this node. mine is false if another
// node, or attempt, has it.
func (db *DB) EndTicket(ctx context.Context, id, node string, attempt int) (mine bool, err error) {
	res, err := db.pool.ExecContext(ctx,
		"DELETE FROM tickets WHERE id = $1 AND node = $2 AND attempt = $3", id, node, attempt)
	return changed(res, id, err)
}

func changed(res sql.Result, id string, err error) (bool, error) {
	if err != nil {
		return false, pg.Error(op, id, err)
	}
	n, err := res.RowsAffected()
	return n > 0, pg.Error(op, id, err)
}

// Life is how long a node may be silent before others end or restart its turns.
func (db *DB) Life() time.Duration { return db.life }

// lifeOf returns how long leases last.
func lifeOf(url string) (time.Duration, error) {
	life, err := pg.Lease(url)
	if life == 0 {
		life = lease.Life
	}
	return life, err
}
