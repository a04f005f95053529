package records

import (
	"context"
	"database/sql"
	"strings"
	"unicode/utf8"
)

// A dialect is what differs between the databases. Statements are written once, for SQLite, with
// {max} and {min} for the functions of two numbers.
type dialect interface {
	// name is that of the database in errors.
	name() string
	// text returns a statement in the database's own form.
	text(statement string) string
	// hasPrefix is the condition that a text begins with a number of bytes, which follow.
	hasPrefix(column string) string
	// hasLabel is the condition that a label has a value, and what names the label.
	hasLabel(label string) (condition, name string)
	// begin begins a transaction, which is the only one that writes. The loss of a soft one is
	// possible when power is lost, and only then.
	begin(ctx context.Context, soft bool) (*sql.Tx, error)
	// reads returns what reads outside of transactions.
	reads() querier
	// secret selects what authenticates tokens of pages.
	secret() string
	check(ctx context.Context) error
	size() int64
	fail(op string, err error) error
	close() error
}

// A querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// A transaction writes.
type transaction struct {
	tx *sql.Tx
	d  dialect
}

// ExecContext is that of sql.Tx.
func (t *transaction) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, t.d.text(text), args...)
}

// QueryContext implements querier.
func (t *transaction) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return t.tx.QueryContext(ctx, t.d.text(text), args...)
}

// QueryRowContext is that of sql.Tx.
func (t *transaction) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, t.d.text(text), args...)
}

// query runs a query and reads each row with scan. It reads all rows before it returns, because a
// transaction has a single connection. Without an error the result is not nil.
func query[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), text string,
	args ...any) ([]T, error) {
	all := []T{}
	for _, a := range args {
		// Nothing is stored under such a text, for which PostgreSQL has no form.
		if s, ok := a.(string); ok && (strings.ContainsRune(s, 0) || !utf8.ValidString(s)) {
			return all, nil
		}
	}
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}
