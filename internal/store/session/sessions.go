package session

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/suggest"
)

// Create creates a session with the branch main. With an empty name the session is anonymous; a
// name in use is an error of kind Invalid.
func (db *DB) Create(ctx context.Context, name string) (turnstone.Session, error) {
	var s turnstone.Session
	domain, err := db.newDomain(ctx)
	if err != nil {
		return s, err
	}
	defer db.settle(domain)
	err = db.write(ctx, func(tx *txn) (err error) {
		s, err = db.create(ctx, tx, name, domain)
		return err
	})
	return s, err
}

// Add is Create with an ID that the caller has chosen, such as a server's controller. It returns the
// session that has the ID if there is one, whatever its name is by now.
func (db *DB) Add(ctx context.Context, id turnstone.SessionID, name string) (turnstone.Session,
	error) {
	if !idForm.MatchString(string(id)) {
		return turnstone.Session{}, turnstone.Errorf("session.create", turnstone.KindInvalid,
			"the session", "%.40q is no session's ID", id)
	}
	s, err := oneSession(ctx, db.sql, string(id), "id = ?", string(id))
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return s, err
	}
	domain, err := db.newDomain(ctx)
	if err != nil {
		return s, err
	}
	defer db.settle(domain)
	err = db.write(ctx, func(tx *txn) (err error) {
		s, err = oneSession(ctx, tx, string(id), "id = ?", string(id))
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			s, err = db.createAs(ctx, tx, id, name, domain)
		}
		return err
	})
	return s, err
}

// IsID reports whether s has the form of a session's ID.
func IsID(s string) bool { return idForm.MatchString(s) }

var idForm = lazyregexp.New(`^s_[0-9a-v]{18}$`)

func (db *DB) create(ctx context.Context, tx *txn, name string,
	domain turnstone.DomainID) (turnstone.Session, error) {
	return db.createAs(ctx, tx, turnstone.NewSessionID(), name, domain)
}

func (db *DB) createAs(ctx context.Context, tx *txn, id turnstone.SessionID, name string,
	domain turnstone.DomainID) (turnstone.Session, error) {
	s := turnstone.Session{ID: id, Name: name, Created: db.now().UTC(), Domain: domain}
	if name != "" {
		if err := CheckName("session", name); err != nil {
			return s, err
		}
		if _, err := find(ctx, tx, name); err == nil {
			return s, taken("session", name, "choose another name")
		}
	}
	if err := made(ctx, s); err != nil {
		return s, err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO sessions (id, name, created, domain) "+
		"VALUES (?, ?, ?, ?)",
		s.ID, sql.NullString{String: name, Valid: name != ""}, unixNano(s.Created), s.Domain)
	if err == nil {
		err = insertBranch(ctx, tx, turnstone.Branch{Session: s.ID, Name: Main, Created: s.Created})
	}
	return s, db.fault("create", name, err)
}

// Ensure returns the session called name, and creates it if it does not exist.
func (db *DB) Ensure(ctx context.Context, name string) (turnstone.Session, error) {
	s, _, err := db.EnsureNew(ctx, name)
	return s, err
}

// EnsureNew is Ensure that reports whether it created the session.
func (db *DB) EnsureNew(ctx context.Context, name string) (s turnstone.Session, created bool,
	err error) {
	if s, err := db.Find(ctx, name); turnstone.KindOf(err) != turnstone.KindNotFound {
		return s, false, err
	}
	if strings.HasPrefix(name, "s_") { // IDs cannot be chosen
		s, err = db.Find(ctx, name)
		return s, false, err
	}
	domain, err := db.newDomain(ctx)
	if err != nil {
		return s, false, err
	}
	defer db.settle(domain)
	err = db.write(ctx, func(tx *txn) (err error) {
		created = false
		s, err = find(ctx, tx, name) // another process may have been faster
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			s, err = db.create(ctx, tx, name, domain)
			created = err == nil
			return err
		}
		if err == nil {
			err = notHidden(ctx, s)
		}
		return err
	})
	return s, created && err == nil, err
}

// Find returns the session with this name or ID, or with a unique prefix of its ID ("s_" and at
// least 6 characters).
func (db *DB) Find(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	s, err := db.visible(ctx, db.sql, nameOrID)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return s, db.unknownSession(ctx, nameOrID)
	}
	return s, err
}

func find(ctx context.Context, q querier, ref string) (turnstone.Session, error) {
	if !strings.HasPrefix(ref, "s_") {
		return oneSession(ctx, q, ref, "name = ?", ref)
	}
	s, err := oneSession(ctx, q, ref, "id = ?", ref)
	if turnstone.KindOf(err) != turnstone.KindNotFound || len(ref) < minPrefix {
		return s, err
	}
	// "~" sorts after all characters of IDs
	return oneSession(ctx, q, ref, "id >= ? AND id < ?", ref, ref+"~")
}

func oneSession(ctx context.Context, q querier, ref, where string, args ...any) (turnstone.Session,
	error) {
	all, err := sessions(ctx, q, "WHERE "+where+" LIMIT 2", args...)
	switch {
	case err != nil:
		return turnstone.Session{}, err
	case len(all) > 1:
		return turnstone.Session{}, ambiguous("session", ref)
	case len(all) == 0:
		return turnstone.Session{}, turnstone.NewError("session.find", turnstone.KindNotFound, ref,
			nil)
	}
	return all[0], nil
}

func sessions(ctx context.Context, q querier, clause string, args ...any) ([]turnstone.Session,
	error) {
	return query(ctx, q, "list", func(rows *sql.Rows) (s turnstone.Session, err error) {
		var name sql.NullString
		var created int64
		err = rows.Scan(&s.ID, &name, &created, &s.Domain)
		s.Name, s.Created = name.String, fromUnixNano(created)
		return s, err
	}, "SELECT id, name, created, domain FROM sessions "+clause, args...)
}

// List returns all sessions that the context may use, oldest first.
func (db *DB) List(ctx context.Context) ([]turnstone.Session, error) {
	all, err := sessions(ctx, db.sql, "ORDER BY created, id")
	if err != nil {
		return nil, err
	}
	// one session whose access cannot be decided does not hide the others
	return slices.DeleteFunc(all, func(s turnstone.Session) bool {
		return may(ctx, s) != nil
	}), nil
}

// Rename changes a session's name, or names an anonymous session.
func (db *DB) Rename(ctx context.Context, id turnstone.SessionID, name string) (turnstone.Session,
	error) {
	if err := CheckName("session", name); err != nil {
		return turnstone.Session{}, err
	}
	var s turnstone.Session
	err := db.write(ctx, func(tx *txn) (err error) {
		if s, err = find(ctx, tx, string(id)); err != nil {
			return err
		}
		if other, err := find(ctx, tx, name); err == nil && other.ID != id {
			return taken("session", name, "choose another name")
		}
		s.Name = name
		_, err = tx.ExecContext(ctx, "UPDATE sessions SET name = ? WHERE id = ?", name, id)
		return db.fault("rename", name, err)
	})
	return s, err
}

// Remove deletes a session with all of its turns, branches and tags. The next gc deletes their data
// from the context store. A session with a running turn is an error of kind Unavailable.
func (db *DB) Remove(ctx context.Context, id turnstone.SessionID) error {
	if err := db.reap(ctx); err != nil {
		return err
	}
	return db.write(ctx, func(tx *txn) error {
		s, err := find(ctx, tx, string(id))
		if err != nil {
			return err
		}
		if err := notRunning(ctx, tx, "session.remove", s.Label(), "", "session = ?",
			s.ID); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM sessions WHERE id = ?", s.ID)
		return db.fault("remove", s.Label(), err)
	})
}

// unknownSession returns the error for a missing session, with a suggestion.
func (db *DB) unknownSession(ctx context.Context, ref string) error {
	e := turnstone.Errorf("session.find", turnstone.KindNotFound, cmp.Or(ref, `""`),
		"there is no such session").WithHint("list the sessions with turn session ls")
	all, err := db.List(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range all {
		if s.Name != "" {
			names = append(names, s.Name)
		}
	}
	e.Hint = meant(ref, names, e.Hint)
	return e
}

// meant returns a hint with the most similar known word, if one is similar.
func meant(word string, known []string, otherwise string) string {
	nearest, edits := suggest.Nearest(word, known)
	if nearest != "" && edits <= 1+len(word)/4 {
		return fmt.Sprintf("did you mean %s? %s", nearest, otherwise)
	}
	return otherwise
}

func taken(what, name, hint string) error {
	return turnstone.Errorf("session.name", turnstone.KindInvalid, name,
		"there is already a %s with that name", what).WithHint(hint)
}

func ambiguous(what, ref string) error {
	return turnstone.Errorf("session.resolve", turnstone.KindInvalid, ref,
		"several %ss have that prefix", what).WithHint("write more of the ID")
}
