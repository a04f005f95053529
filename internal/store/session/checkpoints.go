package session

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"turnstone.dev/turnstone"
)

// A Checkpoint is what the finished steps of a turn left that has not ended. A turn has at most one:
// each replaces the one before, and the end of the turn removes it.
type Checkpoint struct {
	Turn   turnstone.TurnID
	Record turnstone.Digest // the record of the finished steps
	State  turnstone.Digest // what they left
	Step   int              // the number of the last finished step, from 1
	// Needs and Base are those of Finish, for SetCheckpoint alone.
	Needs []turnstone.Digest
	Base  turnstone.TreeRef
	At    time.Time
	// Resumed has an entry for each time that the turn was resumed.
	Resumed []turnstone.Resumption
}

// SetCheckpoint replaces the checkpoint of a turn that this process runs. The objects that c names
// must already be durable. c.Resumed has no effect. That of a sealed turn keeps its needs with those of
// the checkpoints before, whose outputs it may have, until the turn is removed.
func (db *DB) SetCheckpoint(ctx context.Context, c Checkpoint) error {
	was, err := turn(ctx, db.sql, c.Turn)
	if err != nil {
		return err
	}
	state, err := db.sealText(ctx, was.Domain, checkpointPlace+string(c.Turn), string(c.State))
	if err != nil {
		return err
	}
	return db.write(ctx, func(tx *txn) error {
		t, err := turn(ctx, tx, c.Turn)
		if err != nil {
			return err
		}
		if t.Status != turnstone.TurnRunning {
			return db.ended(ctx, tx, "session.checkpoint", c.Turn)
		}
		if err := db.permitted(ctx, tx, t.ID); err != nil {
			return err
		}
		if err := db.announces(ctx, tx); err != nil {
			return err
		}
		if err := insertNeeds(ctx, tx, t.Session, t.ID, c.Needs); err != nil {
			return err
		}
		if err := insertBase(ctx, tx, t.Session, c.Base); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO checkpoints
			(turn, record, state, step, at, resumed) VALUES (?,?,?,?,?,'[]')
			ON CONFLICT (turn) DO UPDATE SET record = excluded.record, state = excluded.state,
			step = excluded.step, at = excluded.at`,
			c.Turn, c.Record, state, c.Step, unixNano(db.now()))
		return db.fault("checkpoint", string(c.Turn), err)
	})
}

// checkpoints returns the checkpoints that an SQL clause selects.
func checkpoints(ctx context.Context, q querier, clause string, args ...any) ([]Checkpoint, error) {
	return query(ctx, q, "read", func(rows *sql.Rows) (c Checkpoint, err error) {
		var at int64
		var resumed string
		if err = rows.Scan(&c.Turn, &c.Record, &c.State, &c.Step, &at, &resumed); err != nil {
			return c, err
		}
		c.At = fromUnixNano(at)
		return c, json.Unmarshal([]byte(resumed), &c.Resumed)
	}, "SELECT turn, record, state, step, at, resumed FROM checkpoints "+clause, args...)
}

// checkpointPlace is where the digest of a checkpoint's state is sealed.
const checkpointPlace = "checkpoints/state/"

// Checkpoint returns the checkpoint of a turn; nil: it has none. If the key of a sealed one is not at
// hand, the error is of kind Unavailable.
func (db *DB) Checkpoint(ctx context.Context, id turnstone.TurnID) (*Checkpoint, error) {
	t, err := visibleTurn(ctx, db.sql, id)
	if err != nil {
		return nil, err
	}
	c, err := oneCheckpoint(ctx, db.sql, id)
	if err == nil && c != nil {
		err = db.openCheckpoint(ctx, t.Domain, c)
	}
	return c, err
}

// openCheckpoint opens what is sealed of c.
func (db *DB) openCheckpoint(ctx context.Context, d turnstone.DomainID, c *Checkpoint) error {
	if d == "" {
		return nil
	}
	state, err := db.openText(ctx, d, checkpointPlace+string(c.Turn), string(c.State))
	c.State = turnstone.Digest(state)
	return err
}

func oneCheckpoint(ctx context.Context, q querier, id turnstone.TurnID) (*Checkpoint, error) {
	all, err := checkpoints(ctx, q, "WHERE turn = ?", id)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// Checkpoints returns the checkpoints of all turns, as turns: with the record and the state of the
// checkpoint in place of their own. Sealed ones are locked, as those of Every.
func (db *DB) Checkpoints(ctx context.Context) ([]turnstone.Turn, error) {
	all, err := checkpoints(ctx, db.sql, "")
	if err != nil {
		return nil, err
	}
	var as []turnstone.Turn
	for _, c := range all {
		t, err := turn(ctx, db.sql, c.Turn)
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		as = append(as, c.as(t))
	}
	return closed(as), nil
}

// as returns t with what c has of it.
func (c *Checkpoint) as(t turnstone.Turn) turnstone.Turn {
	t.Record, t.State, t.Statement, t.Envelope = c.Record, c.State, "", ""
	return t
}

// As returns t, which is c's turn, with what c has of it: a turn on whose state others can start.
func (c *Checkpoint) As(t turnstone.Turn) turnstone.Turn { return c.as(t) }

// leaseTries bounds the attempts to take a lease that a reader of the turn may hold for a moment.
const leaseTries = 20

// Reopen stores an interrupted turn as running again, from its checkpoint, which it returns with an
// entry for this time. This process then holds the turn's lease as after Start, so of several
// processes one succeeds. The error is of kind Invalid if the turn runs, or has ended, and of kind
// NotFound if it has no checkpoint.
func (db *DB) Reopen(ctx context.Context, id turnstone.TurnID) (turnstone.Turn, *Checkpoint, error) {
	t, err := visibleTurn(ctx, db.sql, id)
	if err != nil {
		return t, nil, err
	}
	// Before the transaction, and before the turn runs again: it may wait for a service with keys.
	before, err := oneCheckpoint(ctx, db.sql, id)
	if err != nil {
		return t, nil, err
	}
	var stored turnstone.Digest
	if before != nil {
		stored = before.State
		if err := db.openCheckpoint(ctx, t.Domain, before); err != nil {
			return t, nil, err
		}
	}
	err = db.lease(ctx, id)
	for n := 1; err != nil && n < leaseTries; n++ {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return t, nil, turnstone.NewError("session.resume", turnstone.KindCanceled, string(id),
				context.Cause(ctx))
		}
		err = db.lease(ctx, id)
	}
	if err != nil {
		return t, nil, err
	}
	var c *Checkpoint
	err = db.write(ctx, func(tx *txn) error {
		var err error
		if t, err = turn(ctx, tx, id); err != nil {
			return err
		}
		if err := db.permitted(ctx, tx, id); err != nil {
			return err
		}
		if t.Record != "" {
			return turnstone.Errorf("session.resume", turnstone.KindInvalid, string(id),
				"has ended: %s", t.Result).WithHint("run its document again with turn replay")
		}
		if c, err = oneCheckpoint(ctx, tx, id); err != nil {
			return err
		}
		if c == nil {
			return turnstone.Errorf("session.resume", turnstone.KindNotFound, string(id),
				"was interrupted, and none of its steps is kept").
				WithHint("run its document again; with checkpoint: step a turn keeps its steps")
		}
		if before == nil || c.State != stored {
			return turnstone.Errorf("session.resume", turnstone.KindUnavailable, string(id),
				"was resumed by another process meanwhile").WithHint("try again")
		}
		c.State = before.State
		c.Resumed = append(c.Resumed, turnstone.Resumption{After: c.Step,
			At: db.now().UTC().Truncate(time.Millisecond)})
		text, err := json.Marshal(c.Resumed)
		if err != nil {
			return err
		}
		if _, err = tx.ExecContext(ctx, "UPDATE checkpoints SET resumed = ? WHERE turn = ?",
			string(text), id); err != nil {
			return db.fault("resume", string(id), err)
		}
		_, err = tx.ExecContext(ctx,
			"UPDATE turns SET status = 'running', result = '', ended = 0 WHERE id = ?", id)
		return db.fault("resume", string(id), err)
	})
	if err != nil {
		db.release(id)
		return t, nil, err
	}
	t.Status, t.Result, t.Ended = turnstone.TurnRunning, "", time.Time{}
	if open, err := db.openedOne(ctx, t, nil); err == nil {
		t = open
	}
	return t, c, nil
}
