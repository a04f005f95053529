package session

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
)

// StartTurn says which turn to start.
type StartTurn struct {
	Session turnstone.SessionID // empty: in an anonymous session, which is made
	Branch  string              // empty: main
	// Parent is the turn that it stands on; nil: the branch's head, or none where the
	// branch has no turn yet.
	Parent *turnstone.TurnID
	Second *turnstone.TurnID // of a merge: the other parent; else nil
	Kind   string
	Title  string           // for people; cut to 200 bytes
	ID     turnstone.TurnID // empty: a fresh one
}

// maxTitle bounds a title, in bytes.
const maxTitle = 200

// Start gives a turn its number and keeps it as running. This process holds the
// turn's lease until it calls Finish or ends, in whatever way; then whoever sees
// the turn next knows that it was interrupted. A branch other than main has to
// exist: Fork makes one.
func (db *DB) Start(ctx context.Context, req StartTurn) (Turn, error) {
	t := Turn{ID: req.ID, Session: req.Session, Branch: req.Branch, Kind: req.Kind, Title: cut(req.Title, maxTitle),
		Status: StatusRunning, Started: db.now().UTC(), Parents: []turnstone.TurnID{}}
	if t.ID == "" {
		t.ID = turnstone.NewTurnID()
	}
	if t.Branch == "" {
		t.Branch = Main
	}
	// The lease comes first: a running turn without one is taken for dead.
	if err := db.lease(t.ID); err != nil {
		return Turn{}, err
	}
	err := db.write(ctx, func(tx *sql.Tx) error { return db.start(ctx, tx, &t, req) })
	if err != nil {
		db.release(t.ID)
		return Turn{}, err
	}
	return t, nil
}

func (db *DB) start(ctx context.Context, tx *sql.Tx, t *Turn, req StartTurn) error {
	if t.Session == "" {
		s, err := db.create(ctx, tx, "")
		if err != nil {
			return err
		}
		t.Session = s.ID
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
	err = tx.QueryRowContext(ctx, "UPDATE sessions SET next = next + 1 WHERE id = ? RETURNING next - 1", t.Session).Scan(&t.Number)
	if err != nil {
		return dbError("start", string(t.Session), err)
	}
	return insertTurn(ctx, tx, *t)
}

// checkParent refuses a parent that a turn of session s cannot stand on.
func checkParent(ctx context.Context, q querier, s turnstone.SessionID, id turnstone.TurnID) error {
	p, err := turn(ctx, q, id)
	switch {
	case err != nil:
		return err
	case p.Session != s:
		return turnstone.Errorf("session.start", turnstone.KindInvalid, string(id),
			"is a turn of another session").WithHint("a turn stands on turns of its own session")
	case p.Status == StatusRunning:
		return turnstone.Errorf("session.start", turnstone.KindUnavailable, string(id),
			"is still running").WithHint("wait for it")
	}
	return nil
}

func insertTurn(ctx context.Context, tx *sql.Tx, t Turn) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO turns ("+turnColumns+") VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
		t.ID, t.Session, t.Number, t.Branch, t.Kind, t.Title, t.Status, t.Result, t.Record, t.State, stamp(t.Started), stamp(t.Ended))
	if err != nil {
		return dbError("start", string(t.ID), err)
	}
	for i, p := range t.Parents {
		if _, err := tx.ExecContext(ctx, "INSERT INTO parents (turn, position, parent) VALUES (?,?,?)", t.ID, i, p); err != nil {
			return dbError("start", string(t.ID), err)
		}
	}
	return nil
}

// Finish says how a turn ended.
type Finish struct {
	Turn   turnstone.TurnID
	Result turnstone.Result
	Record turnstone.Digest
	State  turnstone.Digest // empty: the turn left none
	// MoveBranch makes the turn the head of its branch.
	MoveBranch bool
	// ExpectedHead is what the branch's head has to be for that; nil: none.
	ExpectedHead *turnstone.TurnID
}

// Finish makes a running turn one that is done, all in one transaction, and lifts
// its lease. If it is to become its branch's head and another turn was quicker,
// it becomes the head of a new branch, whose name is returned with diverged true.
// What the turn names has to be durable before. After an error the lease is still held.
func (db *DB) Finish(ctx context.Context, f Finish) (onBranch string, diverged bool, err error) {
	err = db.write(ctx, func(tx *sql.Tx) error {
		t, err := turn(ctx, tx, f.Turn)
		if err != nil {
			return err
		}
		if t.Status != StatusRunning {
			return turnstone.Errorf("session.finish", turnstone.KindInvalid, string(f.Turn),
				"is not running")
		}
		onBranch = t.Branch
		if f.MoveBranch {
			if onBranch, diverged, err = db.moveBranch(ctx, tx, t, f.ExpectedHead); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx,
			"UPDATE turns SET status = 'done', result = ?, record = ?, state = ?, branch = ?, ended = ? WHERE id = ?",
			f.Result, f.Record, f.State, onBranch, stamp(db.now()), t.ID)
		return dbError("finish", string(t.ID), err)
	})
	if err == nil {
		db.release(f.Turn)
	}
	return onBranch, diverged, err
}

// moveBranch makes t the head of its branch, or of a new one.
func (db *DB) moveBranch(ctx context.Context, tx *sql.Tx, t Turn, expected *turnstone.TurnID) (string, bool, error) {
	name, diverged, err := landing(ctx, tx, t, t.Branch, expected)
	switch {
	case err != nil:
		return "", false, err
	case diverged:
		return name, true, insertBranch(ctx, tx, Branch{Session: t.Session, Name: name, Head: t.ID, Created: db.now()})
	}
	return name, false, setHead(ctx, tx, t.Session, name, t.ID)
}

// landing finds the branch that ends with t once it is done.
func landing(ctx context.Context, q querier, t Turn, onto string, expected *turnstone.TurnID) (name string, diverged bool, err error) {
	want := turnstone.TurnID("")
	if expected != nil {
		want = *expected
	}
	b, err := branch(ctx, q, t.Session, onto)
	if err == nil && b.Head == want {
		return onto, false, nil
	}
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound { // it may be deleted by now
		return "", false, err
	}
	name, err = freeName(ctx, q, t.Session, onto, t.Number)
	return name, true, err
}

// Landing tells which branch Finish would make end with a running turn, for those
// who have to write it down before. It holds as long as the caller keeps others
// from moving the session's branches.
func (db *DB) Landing(ctx context.Context, id turnstone.TurnID, onto string, expected *turnstone.TurnID) (name string, diverged bool, err error) {
	t, err := turn(ctx, db.sql, id)
	if err != nil {
		return "", false, err
	}
	return landing(ctx, db.sql, t, onto, expected)
}

// Abandon forgets a turn that this process started, before anything of it began,
// and its session with it when that is anonymous and has no other turn. Its
// number is not given again.
func (db *DB) Abandon(ctx context.Context, id turnstone.TurnID) error {
	err := db.write(ctx, func(tx *sql.Tx) error {
		t, err := turn(ctx, tx, id)
		if err != nil {
			return err
		}
		if t.Status != StatusRunning {
			return turnstone.Errorf("session.abandon", turnstone.KindInvalid, string(id),
				"is not running")
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM turns WHERE id = ?", id); err != nil {
			return dbError("abandon", string(id), err)
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM sessions WHERE id = ?1 AND name IS NULL
			AND NOT EXISTS (SELECT 1 FROM turns WHERE session = ?1)`, t.Session)
		return dbError("abandon", string(id), err)
	})
	if err == nil {
		db.release(id)
	}
	return err
}

// freeName makes "<base>-<number>" into a name that nothing in the session has, and
// that is not taken for a turn.
func freeName(ctx context.Context, q querier, s turnstone.SessionID, base string, number int) (string, error) {
	for i := 0; ; i++ {
		suffix := fmt.Sprintf("-%d", number)
		if i > 0 {
			suffix += fmt.Sprintf("-%d", i+1)
		}
		// A name that is cut may not end a part of it with what no part ends with.
		name := strings.TrimRight(base[:min(len(base), turnstone.MaxBranch-len(suffix))], "/._-") + suffix
		if turnstone.ReadsAsTurn(name) {
			continue
		}
		used, err := nameUsed(ctx, q, s, name)
		if err != nil || used == "" {
			return name, err
		}
	}
}

const turnColumns = "id, session, number, branch, kind, title, status, result, record, state, started, ended"

// turns returns the turns that a clause of SQL selects.
func turns(ctx context.Context, q querier, clause string, args ...any) ([]Turn, error) {
	return query(ctx, q, "read", func(rows *sql.Rows) (t Turn, err error) {
		var started, ended int64
		var parents string
		err = rows.Scan(&t.ID, &t.Session, &t.Number, &t.Branch, &t.Kind, &t.Title, &t.Status, &t.Result, &t.Record, &t.State,
			&started, &ended, &parents)
		t.Started, t.Ended, t.Parents = moment(started), moment(ended), []turnstone.TurnID{}
		for p := range strings.FieldsSeq(parents) {
			t.Parents = append(t.Parents, turnstone.TurnID(p))
		}
		return t, err
	}, "SELECT "+turnColumns+`, coalesce((SELECT group_concat(parent, ' ' ORDER BY position)
		FROM parents WHERE turn = turns.id), '') FROM turns `+clause, args...)
}

func turn(ctx context.Context, q querier, id turnstone.TurnID) (Turn, error) {
	all, err := turns(ctx, q, "WHERE id = ?", id)
	if err != nil {
		return Turn{}, err
	}
	if len(all) == 0 {
		return Turn{}, turnstone.Errorf("session.turn", turnstone.KindNotFound, string(id),
			"there is no such turn").WithHint("turn log SESSION lists a session's turns")
	}
	return all[0], nil
}

// Turn returns the turn with this ID.
func (db *DB) Turn(ctx context.Context, id turnstone.TurnID) (Turn, error) {
	t, err := turn(ctx, db.sql, id)
	if err != nil || t.Status != StatusRunning {
		return t, err
	}
	if err := db.reapOne(ctx, t.ID); err != nil {
		return t, err
	}
	return turn(ctx, db.sql, id)
}

// Turns returns all turns of a session, the oldest first.
func (db *DB) Turns(ctx context.Context, s turnstone.SessionID) ([]Turn, error) {
	if err := db.reap(ctx); err != nil {
		return nil, err
	}
	return turns(ctx, db.sql, "WHERE session = ? ORDER BY number", s)
}

// cut shortens s to at most n bytes, at the border of a character.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
