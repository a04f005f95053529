package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"turnstone.dev/turnstone"
)

// State returns the SQLSTATE of an error of the server; empty: it is none.
func State(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// Conflict reports whether err ended a transaction because of another one (a serialization failure or
// a deadlock): nothing of it is stored, and it may run again.
func Conflict(err error) bool {
	code := State(err)
	return code == "40001" || code == "40P01"
}

// Busy reports whether err says that another transaction held a lock for longer than the wait for it.
func Busy(err error) bool { return State(err) == "55P03" }

// Duplicate reports whether err says that a unique key exists already.
func Duplicate(err error) bool { return State(err) == "23505" }

// Away reports whether the server was not reached, or ended the connection: later it may be there.
// Whether a transaction that was about to be stored is stored is not known.
func Away(err error) bool {
	switch code := State(err); {
	case code == "":
	case strings.HasPrefix(code, "08"), // connection exceptions
		strings.HasPrefix(code, "53") && !full(code), // too many connections, out of memory
		code == "57P01", code == "57P02", code == "57P03", // shut down, crashed, starting
		code == "25P03",                  // it was silent in a transaction for too long
		code == "25006", code == "58030": // a standby that was the primary; I/O
		return true
	default:
		return false
	}
	var ce *pgconn.ConnectError
	if errors.As(err, &ce) {
		return !denied(err)
	}
	var ne net.Error
	return errors.As(err, &ne) && !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, sql.ErrConnDone) || pgconn.SafeToRetry(err) && !errors.Is(err, context.Canceled)
}

func full(code string) bool { return code == "53100" }

// denied: the password or the user is wrong, or the database does not exist.
func denied(err error) bool {
	code := State(err)
	return strings.HasPrefix(code, "28") || code == "3D000" || code == "42501"
}

// Error converts an error of the database or of a context to a typed error about subject, with a
// hint. It returns nil and errors that are typed already as they are. No error has a password.
func Error(op turnstone.Op, subject string, err error) error {
	var known *turnstone.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := turnstone.NewError(op, turnstone.KindInternal, subject, err)
	code := State(err)
	switch {
	case errors.Is(err, context.Canceled):
		e.Kind = turnstone.KindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind, e.Hint = turnstone.KindTimeout, "check the connection to the database"
	case denied(err):
		e.Kind, e.Hint = turnstone.KindDenied, "check the database's URL, and the password in the "+
			"file that PGPASSFILE names"
	case code == "53300":
		e.Kind, e.Hint = turnstone.KindUnavailable,
			"the database has too many connections: raise its max_connections, or try again"
	case Busy(err), Conflict(err):
		e.Kind, e.Hint = turnstone.KindUnavailable,
			"another process holds the database for long; try again"
	case full(code):
		e.Kind, e.Hint = turnstone.KindExhausted, "free some space on the database's disk"
	case code == "XX001", code == "XX002":
		e.Kind, e.Hint = turnstone.KindIntegrity, "restore a backup of the database"
	case code == "22021", code == "22P05":
		e.Kind, e.Hint = turnstone.KindInvalid, "write text in UTF-8, without zero bytes"
	case Away(err):
		e.Kind, e.Hint = turnstone.KindUnavailable,
			"check that the database runs, and the connection to it"
	}
	return e
}

// Retry calls f until it succeeds, or fails with an error that another attempt does not change
// (neither Conflict nor Away), or until patience is over. It returns the last error. f must have
// stored nothing when it fails, or find what it has stored.
func Retry(ctx context.Context, patience time.Duration, f func() error) error {
	pause := 5 * time.Millisecond
	for until := time.Now().Add(patience); ; pause = min(2*pause, time.Second) {
		err := f()
		if err == nil || !Conflict(err) && !Away(err) || ctx.Err() != nil ||
			time.Now().After(until) {
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return err
		}
	}
}
