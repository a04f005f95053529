package session

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
)

// Fork creates a branch whose head is from.
func (db *DB) Fork(ctx context.Context, from turnstone.Turn, name string) (turnstone.Branch,
	error) {
	b := turnstone.Branch{Session: from.Session, Name: name, Head: from.ID, Created: db.now().UTC()}
	if err := CheckName("branch", name); err != nil {
		return b, err
	}
	return b, db.write(ctx, func(tx *txn) error {
		if err := checkParent(ctx, tx, from.Session, from.ID); err != nil {
			return err
		}
		if err := unused(ctx, tx, from.Session, name, "choose another name"); err != nil {
			return err
		}
		if err := insertBranch(ctx, tx, b); err != nil {
			return err
		}
		return db.logHead(ctx, tx, b.Session, b.Name)
	})
}

// Branches returns the branches of a session by name, main first.
func (db *DB) Branches(ctx context.Context, s turnstone.SessionID) ([]turnstone.Branch, error) {
	return branches(ctx, db.sql, "WHERE session = ? ORDER BY name <> 'main', name", s)
}

// Branch returns the session's branch with this name.
func (db *DB) Branch(ctx context.Context, s turnstone.SessionID, name string) (turnstone.Branch,
	error) {
	return branch(ctx, db.sql, s, name)
}

// SetHead sets the head of a branch to to if its current head is from (empty: no head); otherwise
// the error is of kind Unavailable.
func (db *DB) SetHead(ctx context.Context, s turnstone.SessionID, name string,
	from, to turnstone.TurnID) error {
	return db.write(ctx, func(tx *txn) error {
		b, err := branch(ctx, tx, s, name)
		if err != nil {
			return err
		}
		if b.Head != from {
			return turnstone.Errorf("session.branch", turnstone.KindUnavailable, name,
				"has moved meanwhile").WithHint("inspect the branch with turn log, and try again")
		}
		if err := checkParent(ctx, tx, s, to); err != nil {
			return err
		}
		if err := setHead(ctx, tx, s, name, to); err != nil {
			return err
		}
		return db.logHead(ctx, tx, s, name)
	})
}

// DeleteBranch deletes a branch. Its turns stay until gc, and longer if another branch or a tag
// reaches them. main cannot be deleted, nor a branch with a running turn.
func (db *DB) DeleteBranch(ctx context.Context, s turnstone.SessionID, name string) error {
	if name == Main {
		return turnstone.Errorf("session.branch", turnstone.KindInvalid, name,
			"cannot be removed, because every session has this branch").
			WithHint("remove the whole session with turn session rm")
	}
	if err := db.reap(ctx); err != nil {
		return err
	}
	return db.write(ctx, func(tx *txn) error {
		if _, err := branch(ctx, tx, s, name); err != nil {
			return err
		}
		err := notRunning(ctx, tx, "session.branch", name, " on it", "session = ? AND branch = ?",
			s, name)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM branches WHERE session = ? AND name = ?", s, name)
		if err != nil {
			return db.fault("branch", name, err)
		}
		return db.logHead(ctx, tx, s, name)
	})
}

// notRunning rejects a change of subject while one of its turns runs. where is an SQL condition.
func notRunning(ctx context.Context, q querier, op turnstone.Op, subject, place, where string,
	args ...any) error {
	running, err := turns(ctx, q, "WHERE "+where+" AND status = 'running' LIMIT 1", args...)
	if err != nil || len(running) == 0 {
		return err
	}
	return turnstone.Errorf(op, turnstone.KindUnavailable, subject, "turn %d (%s) is running"+place,
		running[0].Number, running[0].ID).WithHint("wait for it, or interrupt it")
}

// Tag gives a turn a permanent name. A name that is used in the turn's session is an error of kind
// Invalid, unless it is already this turn's tag.
func (db *DB) Tag(ctx context.Context, of turnstone.Turn, name string) (turnstone.Tag, error) {
	t := turnstone.Tag{Session: of.Session, Name: name, Turn: of.ID, Created: db.now().UTC()}
	if err := CheckName("tag", name); err != nil {
		return t, err
	}
	return t, db.write(ctx, func(tx *txn) error {
		if err := checkParent(ctx, tx, of.Session, of.ID); err != nil {
			return err
		}
		had, err := tags(ctx, tx, "WHERE session = ? AND name = ?", of.Session, name)
		if err != nil {
			return err
		}
		if len(had) > 0 && had[0].Turn == of.ID {
			t = had[0]
			return nil
		}
		if err := unused(ctx, tx, of.Session, name,
			"choose another name, or remove the old tag with turn session untag"); err != nil {
			return err
		}
		return insertTag(ctx, tx, t)
	})
}

// Tags returns the tags of a session by name.
func (db *DB) Tags(ctx context.Context, s turnstone.SessionID) ([]turnstone.Tag, error) {
	return tags(ctx, db.sql, "WHERE session = ? ORDER BY name", s)
}

// Untag deletes a tag.
func (db *DB) Untag(ctx context.Context, s turnstone.SessionID, name string) error {
	return db.write(ctx, func(tx *txn) error {
		known, err := tags(ctx, tx, "WHERE session = ?", s)
		if err != nil {
			return err
		}
		var names []string
		for _, t := range known {
			names = append(names, t.Name)
		}
		res, err := tx.ExecContext(ctx, "DELETE FROM tags WHERE session = ? AND name = ?", s, name)
		if err != nil {
			return db.fault("untag", name, err)
		}
		if n, err := res.RowsAffected(); err == nil && n == 0 {
			return turnstone.Errorf("session.untag", turnstone.KindNotFound, name,
				"there is no such tag").
				WithHint(meant(name, names, "list the tags with turn session show"))
		}
		return nil
	})
}

// unused rejects a name that refers to an object of a session.
func unused(ctx context.Context, q querier, s turnstone.SessionID, name, hint string) error {
	used, err := nameUsed(ctx, q, s, name)
	if err != nil || used == "" {
		return err
	}
	return taken(used, name, hint)
}

// nameUsed returns the object that a name refers to in a session: "branch", "tag" or "".
func nameUsed(ctx context.Context, q querier, s turnstone.SessionID, name string) (string, error) {
	var what string
	err := q.QueryRowContext(ctx, `SELECT coalesce((SELECT 'branch' FROM branches WHERE session = ?1 AND name = ?2),
		(SELECT 'tag' FROM tags WHERE session = ?1 AND name = ?2), '')`, s, name).Scan(&what)
	return what, q.fault("name", name, err)
}

func branch(ctx context.Context, q querier, s turnstone.SessionID, name string) (turnstone.Branch,
	error) {
	all, err := branches(ctx, q, "WHERE session = ? ORDER BY name", s)
	if err != nil {
		return turnstone.Branch{}, err
	}
	var names []string
	for _, b := range all {
		if b.Name == name {
			return b, nil
		}
		names = append(names, b.Name)
	}
	label := string(s)
	if known, err := sessions(ctx, q, "WHERE id = ?", s); err == nil && len(known) == 1 {
		label = known[0].Label()
	}
	e := turnstone.Errorf("session.branch", turnstone.KindNotFound,
		fmt.Sprintf("%s@%.80s", label, name),
		"there is no such branch").
		WithHint(meant(name, names,
			fmt.Sprintf("create the branch with turn fork %s@NUMBER --branch %.80s", label, name)))
	if len(all) == 0 {
		e.Subject, e.Err, e.Hint = string(s), errors.New("there is no such session"),
			"list the sessions with turn session ls"
	}
	return turnstone.Branch{}, e
}

func branches(ctx context.Context, q querier, clause string, args ...any) ([]turnstone.Branch,
	error) {
	return query(ctx, q, "branches", func(rows *sql.Rows) (b turnstone.Branch, err error) {
		var created int64
		err = rows.Scan(&b.Session, &b.Name, &b.Head, &created)
		b.Created = fromUnixNano(created)
		return b, err
	}, "SELECT session, name, coalesce(head, ''), created FROM branches "+clause, args...)
}

func insertBranch(ctx context.Context, tx *txn, b turnstone.Branch) error {
	_, err := tx.ExecContext(ctx,
		"INSERT INTO branches (session, name, head, created) VALUES (?,?,?,?)",
		b.Session, b.Name, sql.NullString{String: string(b.Head),
			Valid: b.Head != ""}, unixNano(b.Created))
	return tx.fault("branch", b.Name, err)
}

func setHead(ctx context.Context, tx *txn, s turnstone.SessionID, name string,
	to turnstone.TurnID) error {
	_, err := tx.ExecContext(ctx,
		"UPDATE branches SET head = ? WHERE session = ? AND name = ?", to, s, name)
	return tx.fault("branch", name, err)
}

func tags(ctx context.Context, q querier, clause string, args ...any) ([]turnstone.Tag, error) {
	return query(ctx, q, "tags", func(rows *sql.Rows) (t turnstone.Tag, err error) {
		var created int64
		err = rows.Scan(&t.Session, &t.Name, &t.Turn, &created)
		t.Created = fromUnixNano(created)
		return t, err
	}, "SELECT session, name, turn, created FROM tags "+clause, args...)
}

func insertTag(ctx context.Context, tx *txn, t turnstone.Tag) error {
	_, err := tx.ExecContext(ctx,
		"INSERT INTO tags (session, name, turn, created) VALUES (?,?,?,?)", t.Session, t.Name,
		t.Turn, unixNano(t.Created))
	return tx.fault("tag", t.Name, err)
}
