// Package sqlitefault says what an error of an SQLite database means for its user.
package sqlitefault

import (
	"context"
	"errors"
	"fmt"
	"os"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"turnstone.dev/turnstone"
)

// Hints are what a user can do about a database.
type Hints struct {
	Full    string // whose disk is full
	Damaged string
	Access  string // that cannot be read or written
}

// Busy reports whether err says that another connection held the database for longer than the wait
// for it.
func Busy(err error) bool {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return false
	}
	code := se.Code() & 0xff
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}

// Error converts an error of SQLite, of its file or of a context to a typed error about the database
// at path, with a hint. It returns nil and errors that are typed already as they are.
func Error(op turnstone.Op, path string, err error, h Hints) error {
	var known *turnstone.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := turnstone.NewError(op, turnstone.KindInternal, path, err)
	var se *sqlite.Error
	if errors.As(err, &se) {
		code := se.Code() & 0xff
		if se.Code() == sqlite3.SQLITE_IOERR_SHMSIZE { // the index of the log has no room to grow
			code = sqlite3.SQLITE_FULL
			e.Err = fmt.Errorf("database or disk is full: %w", err)
		}
		switch code {
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			e.Kind, e.Hint = turnstone.KindUnavailable,
				"another process holds the database for long; try again"
		case sqlite3.SQLITE_FULL:
			e.Kind, e.Hint = turnstone.KindExhausted, h.Full
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			e.Kind, e.Hint = turnstone.KindIntegrity, h.Damaged
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
			sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR:
			e.Kind, e.Hint = turnstone.KindUnavailable, h.Access
		}
	}
	var pe *os.PathError
	switch {
	case turnstone.IsFull(err):
		e.Kind, e.Hint = turnstone.KindExhausted, h.Full
	case errors.As(err, &pe):
		e.Kind, e.Err, e.Hint = turnstone.KindUnavailable, pe.Err, h.Access
	case errors.Is(err, context.Canceled):
		e.Kind = turnstone.KindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = turnstone.KindTimeout
	}
	return e
}
