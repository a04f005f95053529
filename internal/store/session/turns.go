package session

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// StartTurn describes the turn to start.
type StartTurn struct {
	Session turnstone.SessionID // empty: a new anonymous session
	Branch  string              // empty: main
	// Parent is the turn to start from; nil: the branch's head, or none if the branch has no turn
	// yet.
	Parent *turnstone.TurnID
	Second *turnstone.TurnID // for a merge: the other parent; otherwise nil
	Kind   turnstone.TurnKind
	Title  string           // display title; cut to 200 bytes
	ID     turnstone.TurnID // empty: a fresh ID
	// Before is called with the domain of the turn, just before the turn is in the database; nil: it is
	// not.
	Before func(d turnstone.DomainID)
}

// maxTitle bounds a title in bytes.
const maxTitle = 200

// Start assigns a number to a turn and stores it as running. This process holds the turn's lease
// until it calls Finish or ends for any reason; after its end, the next reader of the turn records
// the interruption. A branch other than main must exist: Fork creates branches.
func (db *DB) Start(ctx context.Context, req StartTurn) (turnstone.Turn, error) {
	t := turnstone.Turn{ID: req.ID, Session: req.Session, Branch: req.Branch, Kind: req.Kind,
		Title:  cut(req.Title, maxTitle),
		Status: turnstone.TurnRunning, Started: db.now().UTC(), Parents: []turnstone.TurnID{}}
	if t.ID == "" {
		t.ID = turnstone.NewTurnID()
	}
	if t.Branch == "" {
		t.Branch = Main
	}
	var err error
	if t.Domain, err = db.domainOf(ctx, t.Session); err != nil {
		return turnstone.Turn{}, err
	}
	if t.Session == "" {
		defer db.settle(t.Domain)
	}
	stored, err := db.sealed(ctx, t)
	if err != nil {
		return turnstone.Turn{}, err
	}
	if req.Before != nil {
		req.Before(t.Domain)
	}
	// The lease comes first: a running turn without a lease is considered dead.
	if err := db.lease(ctx, t.ID); err != nil {
		return turnstone.Turn{}, err
	}
	var started turnstone.Turn
	err = db.write(ctx, func(tx *txn) error {
		started = t
		return db.start(ctx, tx, &started, stored.Title, req)
	})
	if err != nil {
		db.release(t.ID)
		return turnstone.Turn{}, err
	}
	return started, nil
}

// start completes t. title is the title as it is stored.
func (db *DB) start(ctx context.Context, tx *txn, t *turnstone.Turn, title string,
	req StartTurn) error {
	if t.Session == "" {
		s, err := db.create(ctx, tx, "", t.Domain)
		if err != nil {
			return err
		}
		t.Session = s.ID
	}
	if err := mayByID(ctx, tx, t.Session); err != nil {
		return err
	}
	// Whoever seals the session has missed this turn, which is in the clear so far.
	if s, err := oneSession(ctx, tx, string(t.Session), "id = ?", t.Session); err != nil {
		return err
	} else if s.Domain != t.Domain {
		return turnstone.Errorf("session.start", turnstone.KindUnavailable, s.Label(),
			"was sealed just now").WithHint("try again")
	}
	b, err := branch(ctx, tx, t.Session, t.Branch)
	if err != nil {
		return err
	}
	switch {
	case req.Parent != nil && *req.Parent != "":
		t.Parents = append(t.Parents, *req.Parent)
	case req.Parent == nil && b.Head != "":
		t.Parents = append(t.Parents, b.Head)
	}
	if req.Second != nil {
		t.Parents = append(t.Parents, *req.Second)
	}
	for _, p := range t.Parents {
		if err := checkParent(ctx, tx, t.Session, p); err != nil {
			return err
		}
	}
	err = tx.QueryRowContext(ctx,
		"UPDATE sessions SET next = next + 1 WHERE id = ? RETURNING next - 1",
		t.Session).Scan(&t.Number)
	if err != nil {
		return db.fault("start", string(t.Session), err)
	}
	stored := *t
	stored.Title = title
	return insertTurn(ctx, tx, stored)
}

// checkParent rejects a parent that is not valid for a turn of session s.
func checkParent(ctx context.Context, q querier, s turnstone.SessionID, id turnstone.TurnID) error {
	p, err := turn(ctx, q, id)
	switch {
	case err != nil:
		return err
	case p.Session != s:
		return turnstone.Errorf("session.start", turnstone.KindInvalid, string(id),
			"is a turn of another session").WithHint("choose a parent from the turn's own session")
	case p.Status == turnstone.TurnRunning:
		return turnstone.Errorf("session.start", turnstone.KindUnavailable, string(id),
			"is still running").WithHint("wait for it")
	}
	return nil
}

// insertTurn stores a turn, whose title and state are those that are stored: see DB.sealed.
func insertTurn(ctx context.Context, tx *txn, t turnstone.Turn) error {
	_, err := tx.ExecContext(ctx,
		"INSERT INTO turns ("+turnColumns+") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
		t.ID, t.Session, t.Number, t.Branch, t.Kind, t.Title, t.Status, t.Result, t.Record, t.State,
		t.Statement, t.Envelope, unixNano(t.Started), unixNano(t.Ended))
	if err != nil {
		return tx.fault("start", string(t.ID), err)
	}
	for i, p := range t.Parents {
		if _, err := tx.ExecContext(ctx,
			"INSERT INTO parents (turn, position, parent) VALUES (?,?,?)", t.ID, i, p); err != nil {
			return tx.fault("start", string(t.ID), err)
		}
	}
	return nil
}

// Finish describes the end of a turn.
type Finish struct {
	Turn   turnstone.TurnID
	Result turnstone.Result
	Record turnstone.Digest
	State  turnstone.Digest // empty: the turn left no state
	// Statement and Envelope are those of turnstone.Turn.
	Statement, Envelope turnstone.Digest
	// Needs has the names of the objects that the turn keeps from deletion, if its session is sealed.
	Needs []turnstone.Digest
	// Base is the tree of the template on which the first turn of a sealed session began.
	Base turnstone.TreeRef
	// MoveBranch makes the turn the head of its branch.
	MoveBranch bool
	// ExpectedHead is the required current head for MoveBranch; nil: none.
	ExpectedHead *turnstone.TurnID
	// Home is the turn's use of a home, whose tree it changes; nil: none.
	Home *HomeUse
}

// Finish stores a running turn as done in a single transaction and releases its lease. If the turn
// should become its branch's head and another turn was faster, it becomes the head of a new branch,
// whose name is returned with diverged true. The objects that the turn refers to must already be
// durable. A home that is not what the turn began with is an error of kind Unavailable. After an
// error the lease is still held. A turn without a record keeps its checkpoint, if it has one: see
// Reopen. If another process holds the database, such as a backup, or if the database is away, Finish
// waits for longer than other methods: what the turn did would be lost. If another machine has the
// turn's lease by then, the error is of kind Unavailable.
func (db *DB) Finish(ctx context.Context, f Finish) (onBranch string, diverged bool, err error) {
	again := "" // the branch of a turn that an earlier attempt may have stored
	for until := time.Now().Add(finishWait); ; db.waited.Add(1) {
		onBranch, diverged, err = db.finish(ctx, f, &again)
		if !db.later(err) || ctx.Err() != nil || time.Now().After(until) {
			return onBranch, diverged, err
		}
		select {
		case <-time.After(pauseForLater):
		case <-ctx.Done():
		}
	}
}

// finishWait bounds the wait of Finish for a locked database.
const finishWait = 10 * time.Minute

// finish is one attempt of Finish. again is the branch of the turn before the first attempt.
func (db *DB) finish(ctx context.Context, f Finish, again *string) (onBranch string, diverged bool,
	err error) {
	was, err := turn(ctx, db.sql, f.Turn)
	if err != nil {
		return "", false, err
	}
	if *again != "" && was.Status == turnstone.TurnDone && was.Record == f.Record &&
		was.Result == f.Result { // the answer to an earlier attempt was lost
		db.release(f.Turn)
		return was.Branch, was.Branch != *again, nil
	}
	*again = was.Branch
	state, err := db.sealText(ctx, was.Domain, statePlace+string(f.Turn), string(f.State))
	if err != nil {
		return "", false, err
	}
	err = db.write(ctx, func(tx *txn) error {
		t, err := turn(ctx, tx, f.Turn)
		if err != nil {
			return err
		}
		if t.Status != turnstone.TurnRunning {
			return db.ended(ctx, tx, "session.finish", f.Turn)
		}
		if err := db.permitted(ctx, tx, t.ID); err != nil {
			return err
		}
		if f.Record != "" || f.Home != nil {
			if err := db.announces(ctx, tx); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, "UPDATE turns SET statement = ?, envelope = ? WHERE id = ?",
			f.Statement, f.Envelope, t.ID)
		if err != nil {
			return db.fault("finish", string(t.ID), err)
		}
		if err := insertNeeds(ctx, tx, t.Session, t.ID, f.Needs); err != nil {
			return err
		}
		if err := insertBase(ctx, tx, t.Session, f.Base); err != nil {
			return err
		}
		if f.Home != nil {
			if err := db.useHome(ctx, tx, f.Home); err != nil {
				return err
			}
		}
		onBranch = t.Branch
		if f.MoveBranch {
			if onBranch, diverged, err = db.moveBranch(ctx, tx, t, f.ExpectedHead); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx,
			"UPDATE turns SET status = 'done', result = ?, record = ?, state = ?, branch = ?, "+
				"ended = ? WHERE id = ?",
			f.Result, f.Record, state, onBranch, unixNano(db.now()), t.ID)
		if err == nil && f.Record != "" { // otherwise the turn may be resumed
			_, err = tx.ExecContext(ctx, "DELETE FROM checkpoints WHERE turn = ?", t.ID)
		}
		return db.fault("finish", string(t.ID), err)
	})
	if err == nil {
		db.release(f.Turn)
	}
	return onBranch, diverged, err
}

// ended returns the error for the end of a turn that does not run: it has ended before, or another
// machine has found it interrupted.
func (db *DB) ended(ctx context.Context, tx *txn, op turnstone.Op, id turnstone.TurnID) error {
	if db.heldLease(id) != nil {
		if err := db.permitted(ctx, tx, id); err != nil {
			return err
		}
	}
	return turnstone.Errorf(op, turnstone.KindInvalid, string(id), "is not running")
}

// SetEnvelope replaces the envelope of a turn's statement, to which somebody has added a signature:
// the object from by the object to, which must be durable. needs is that of Finish, for the new
// object. If the envelope is not from, the error is of kind Unavailable.
func (db *DB) SetEnvelope(ctx context.Context, id turnstone.TurnID,
	from, to turnstone.Digest, needs []turnstone.Digest) error {
	return db.write(ctx, func(tx *txn) error {
		if err := db.announces(ctx, tx); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx,
			"UPDATE turns SET envelope = ? WHERE id = ? AND envelope = ?", to, id, from)
		if err != nil {
			return db.fault("sign", string(id), err)
		}
		if n, err := res.RowsAffected(); err == nil && n == 0 {
			return turnstone.Errorf("session.sign", turnstone.KindUnavailable, string(id),
				"was signed meanwhile").WithHint("see who signed with turn verify " + string(id))
		}
		t, err := turn(ctx, tx, id)
		if err != nil {
			return err
		}
		return insertNeeds(ctx, tx, t.Session, id, needs)
	})
}

// moveBranch makes t the head of its branch, or of a new branch.
func (db *DB) moveBranch(ctx context.Context, tx *txn, t turnstone.Turn,
	expected *turnstone.TurnID) (string, bool, error) {
	name, diverged, err := landing(ctx, tx, t, t.Branch, expected)
	switch {
	case err != nil:
		return "", false, err
	case diverged:
		err = insertBranch(ctx, tx, turnstone.Branch{Session: t.Session, Name: name,
			Head: t.ID, Created: db.now()})
	default:
		err = setHead(ctx, tx, t.Session, name, t.ID)
	}
	if err == nil {
		err = db.logHead(ctx, tx, t.Session, name)
	}
	return name, diverged, err
}

// landing returns the branch that will end with t after Finish.
func landing(ctx context.Context, q querier, t turnstone.Turn, onto string,
	expected *turnstone.TurnID) (name string, diverged bool, err error) {
	want := turnstone.TurnID("")
	if expected != nil {
		want = *expected
	}
	b, err := branch(ctx, q, t.Session, onto)
	if err == nil && b.Head == want {
		return onto, false, nil
	}
	// the branch may be deleted by now
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		return "", false, err
	}
	name, err = freeName(ctx, q, t.Session, onto, t.Number)
	return name, true, err
}

// Landing returns the branch that Finish would move to a running turn, for callers that must record
// it before. The result is valid while the caller prevents other changes of the session's branches.
func (db *DB) Landing(ctx context.Context, id turnstone.TurnID, onto string,
	expected *turnstone.TurnID) (name string, diverged bool, err error) {
	t, err := turn(ctx, db.sql, id)
	if err != nil {
		return "", false, err
	}
	return landing(ctx, db.sql, t, onto, expected)
}

// Abandon deletes a turn that this process started before any of its work began, and its session if
// the session is anonymous and has no other turn. The turn's number is free again if no later turn has begun: what was
// not kept leaves no gap.
func (db *DB) Abandon(ctx context.Context, id turnstone.TurnID) error {
	return db.abandon(ctx, id, false)
}

// AbandonFirst is Abandon of a turn for which its session was created: without turns it is removed,
// although it has a name.
func (db *DB) AbandonFirst(ctx context.Context, id turnstone.TurnID) error {
	return db.abandon(ctx, id, true)
}

func (db *DB) abandon(ctx context.Context, id turnstone.TurnID, named bool) error {
	err := db.write(ctx, func(tx *txn) error {
		t, err := turn(ctx, tx, id)
		if err != nil {
			return err
		}
		if t.Status != turnstone.TurnRunning {
			return db.ended(ctx, tx, "session.abandon", id)
		}
		if err := db.permitted(ctx, tx, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM turns WHERE id = ?", id); err != nil {
			return db.fault("abandon", string(id), err)
		}
		if _, err := tx.ExecContext(ctx, "UPDATE sessions SET next = ?1 WHERE id = ?2 AND next = ?1 + 1", t.Number,
			t.Session); err != nil {
			return db.fault("abandon", string(id), err)
		}
		return removeEmpty(ctx, tx, t.Session, named)
	})
	if err == nil {
		db.release(id)
	}
	return err
}

// RemoveEmpty removes a session that was created for a turn that could not start, unless it has turns.
func (db *DB) RemoveEmpty(ctx context.Context, s turnstone.SessionID) error {
	return db.write(ctx, func(tx *txn) error { return removeEmpty(ctx, tx, s, true) })
}

// removeEmpty removes a session without turns and tags; one with a name only if named is set.
func removeEmpty(ctx context.Context, tx *txn, s turnstone.SessionID, named bool) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE id = ?1 AND (name IS NULL OR ?2)
		AND NOT EXISTS (SELECT 1 FROM turns WHERE session = ?1)`, s, named)
	return tx.fault("abandon", string(s), err)
}

// freeName returns "<base>-<number>" as a name that is unused in the session and not reserved for
// turns.
func freeName(ctx context.Context, q querier, s turnstone.SessionID, base string,
	number int) (string, error) {
	for i := 0; ; i++ {
		suffix := fmt.Sprintf("-%d", number)
		if i > 0 {
			suffix += fmt.Sprintf("-%d", i+1)
		}
		// A truncated name must not leave a segment with an invalid ending.
		name := strings.TrimRight(base[:min(len(base), turnstone.MaxBranch-len(suffix))], "/._-") +
			suffix
		if turnstone.ReadsAsTurn(name) {
			continue
		}
		used, err := nameUsed(ctx, q, s, name)
		if err != nil || used == "" {
			return name, err
		}
	}
}

const turnColumns = "id, session, number, branch, kind, title, status, result, record, state, " +
	"statement, envelope, started, ended"

// turns returns the turns that an SQL clause selects, as they are stored: see DB.opened.
func turns(ctx context.Context, q querier, clause string, args ...any) ([]turnstone.Turn, error) {
	return query(ctx, q, "read", func(rows *sql.Rows) (t turnstone.Turn, err error) {
		var started, ended int64
		var parents string
		err = rows.Scan(&t.ID, &t.Session, &t.Number, &t.Branch, &t.Kind, &t.Title, &t.Status,
			&t.Result, &t.Record, &t.State, &t.Statement, &t.Envelope,
			&started, &ended, &parents, &t.Domain)
		t.Started, t.Ended, t.Parents = fromUnixNano(started), fromUnixNano(ended), []turnstone.TurnID{}
		for p := range strings.FieldsSeq(parents) {
			t.Parents = append(t.Parents, turnstone.TurnID(p))
		}
		return t, err
	}, "SELECT "+turnColumns+`, coalesce((SELECT string_agg(parent, ' ' ORDER BY position)
		FROM parents WHERE turn = turns.id), ''),
		(SELECT domain FROM sessions WHERE id = turns.session) FROM turns `+clause, args...)
}

func turn(ctx context.Context, q querier, id turnstone.TurnID) (turnstone.Turn, error) {
	all, err := turns(ctx, q, "WHERE id = ?", id)
	if err != nil {
		return turnstone.Turn{}, err
	}
	if len(all) == 0 {
		return turnstone.Turn{}, unknownTurn(id)
	}
	return all[0], nil
}

func unknownTurn(id turnstone.TurnID) error {
	return turnstone.Errorf("session.turn", turnstone.KindNotFound, string(id),
		"there is no such turn").WithHint("list a session's turns with turn log SESSION")
}

// Turn returns the turn with this ID.
func (db *DB) Turn(ctx context.Context, id turnstone.TurnID) (turnstone.Turn, error) {
	t, err := visibleTurn(ctx, db.sql, id)
	if err == nil && t.Status == turnstone.TurnRunning {
		if err = db.reapOne(ctx, t.ID); err == nil {
			t, err = visibleTurn(ctx, db.sql, id)
		}
	}
	return db.openedOne(ctx, t, err)
}

// Turns returns all turns of a session, oldest first.
func (db *DB) Turns(ctx context.Context, s turnstone.SessionID) ([]turnstone.Turn, error) {
	if err := db.reap(ctx); err != nil {
		return nil, err
	}
	all, err := turns(ctx, db.sql, "WHERE session = ? ORDER BY number", s)
	return db.opened(ctx, all, err)
}

// cut truncates s to at most n bytes at a character boundary.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(brief.Line(s), "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
