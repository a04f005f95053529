package records

import (
	"context"
	"database/sql"
	"sync"
)

// maxPrepared bounds the statements that a pool keeps. The texts of queries are few.
const maxPrepared = 64

// A reader is a pool that parses each query once for each of its connections. Parsing a query costs
// more than reading one row by its key, and each channel that opens reads some.
type reader struct {
	*sql.DB
	text func(statement string) string // in the database's form

	mu   sync.Mutex
	kept map[string]*sql.Stmt
}

// QueryContext implements querier.
func (r *reader) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	s, err := r.prepared(ctx, text)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return r.DB.QueryContext(ctx, r.text(text), args...)
	}
	return s.QueryContext(ctx, args...)
}

// prepared returns the statement of a query, or nil if there are too many.
func (r *reader) prepared(ctx context.Context, text string) (*sql.Stmt, error) {
	r.mu.Lock()
	s, has := r.kept[text]
	full := len(r.kept) >= maxPrepared
	r.mu.Unlock()
	if has || full {
		return s, nil
	}
	s, err := r.PrepareContext(ctx, r.text(text)) // may wait for a connection
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, has := r.kept[text]; has || len(r.kept) >= maxPrepared {
		_ = s.Close()
		return first, nil
	}
	if r.kept == nil {
		r.kept = map[string]*sql.Stmt{}
	}
	r.kept[text] = s
	return s, nil
}

// Close ends the statements with the pool.
func (r *reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.kept {
		_ = s.Close()
	}
	r.kept = nil
	return r.DB.Close()
}
