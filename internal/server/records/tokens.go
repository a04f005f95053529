package records

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"turnstone.dev/turnstone"
)

// PutTenant implements Tokens.
func (db *DB) PutTenant(ctx context.Context, t Tenant) error {
	if err := checkTenant("tenant", t.Name); err != nil {
		return err
	}
	return db.write(ctx, false, "tenant", func(ctx context.Context, tx *transaction) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO tenants VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET disabled = excluded.disabled`, t.Name, t.Disabled,
			unixNano(db.now()))
		return err
	})
}

// Tenants implements Tokens.
func (db *DB) Tenants(ctx context.Context) ([]Tenant, error) {
	all, err := query(ctx, db.reads, func(rows *sql.Rows) (t Tenant, err error) {
		var created int64
		err = rows.Scan(&t.Name, &t.Disabled, &created)
		t.Created = fromUnixNano(created)
		return t, err
	}, "SELECT name, disabled, created FROM tenants ORDER BY name")
	return all, db.fail("tenants", err)
}

// PutToken implements Tokens.
func (db *DB) PutToken(ctx context.Context, t Token) error {
	if err := t.check(); err != nil {
		return err
	}
	scopes, err := json.Marshal(t.Scopes)
	if err != nil {
		return db.fail("token", err)
	}
	ancestors, err := json.Marshal(append([]Ancestor{}, t.Ancestors...))
	if err != nil {
		return db.fail("token", err)
	}
	return db.write(ctx, false, "token", func(ctx context.Context, tx *transaction) error {
		if err := db.useTenant(ctx, tx, t.Tenant); err != nil {
			return err
		}
		var other string
		err := tx.QueryRowContext(ctx, "SELECT id FROM tokens WHERE id = ?", t.ID).Scan(&other)
		if err == nil {
			return invalid("token", t.ID, "the ID exists").WithHint("use a new ID")
		} else if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		age, err := db.ageNow(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO tokens (id, tenant, name, subject, key, scopes,
			issued, expires, age, ancestors) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, t.ID, t.Tenant,
			t.Name, t.Subject, t.Key, string(scopes), unixNano(t.Issued), unixNano(t.Expires),
			int64(age), string(ancestors))
		return err
	})
}

// Token implements Tokens.
func (db *DB) Token(ctx context.Context, id string) (Token, error) {
	all, err := query(ctx, db.reads, func(rows *sql.Rows) (Token, error) {
		t, _, err := scanToken(rows)
		return t, err
	}, "SELECT "+tokenColumns+" FROM tokens WHERE id = ?", id)
	if err == nil && len(all) == 0 {
		return Token{}, turnstone.Errorf("records.token", turnstone.KindNotFound, "the token",
			"does not exist").WithHint("list what exists")
	} else if err != nil {
		return Token{}, db.fail("token", err)
	}
	return all[0], nil
}

const tokenColumns = "seq, id, tenant, name, subject, key, scopes, issued, expires, ancestors"

func scanToken(rows *sql.Rows) (t Token, seq int64, err error) {
	var issued, expires int64
	var scopes, ancestors string
	err = rows.Scan(&seq, &t.ID, &t.Tenant, &t.Name, &t.Subject, &t.Key, &scopes, &issued, &expires,
		&ancestors)
	if err == nil {
		err = json.Unmarshal([]byte(scopes), &t.Scopes)
	}
	if err == nil && ancestors != "[]" {
		err = json.Unmarshal([]byte(ancestors), &t.Ancestors)
	}
	t.Issued, t.Expires = fromUnixNano(issued), fromUnixNano(expires)
	return t, seq, err
}

// TokenPage implements Tokens.
func (db *DB) TokenPage(ctx context.Context, tenant string, p Page) ([]Token, string, error) {
	const list = "tokens"
	size, before, err := db.begin(p, tenant, list)
	if err != nil {
		return nil, "", err
	}
	var places []int64
	all, err := query(ctx, db.reads, func(rows *sql.Rows) (Token, error) {
		t, seq, err := scanToken(rows)
		places = append(places, seq)
		return t, err
	}, "SELECT "+tokenColumns+` FROM tokens
		WHERE (? OR tenant = ?) AND seq < ? ORDER BY seq DESC LIMIT ?`, tenant == "", tenant, before,
		size+1)
	if err != nil {
		return nil, "", db.fail("tokens", err)
	}
	next := ""
	if len(all) > size {
		all, next = all[:size], db.token(places[size-1], tenant, list)
	}
	return all, next, nil
}

// Revoke implements Tokens.
func (db *DB) Revoke(ctx context.Context, list ...Revocation) error {
	for i := range list {
		if err := list[i].check(); err != nil {
			return err
		}
	}
	return db.write(ctx, false, "revoke", func(ctx context.Context, tx *transaction) error {
		age, err := db.ageNow(ctx, tx)
		for _, r := range list {
			if err != nil {
				break
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO revocations VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT (issuer, token, key) DO UPDATE SET
					until = CASE WHEN revocations.until = 0 OR excluded.until = 0 THEN 0
						ELSE {max}(revocations.until, excluded.until) END,
					revoked = {min}(revocations.revoked, excluded.revoked), age = excluded.age`,
				r.Issuer, r.TokenID, r.Key, unixNano(r.Until), unixNano(db.now()), int64(age))
		}
		return err
	})
}

// Revocations implements Tokens.
func (db *DB) Revocations(ctx context.Context, after time.Time) ([]Revocation, error) {
	all, err := query(ctx, db.reads, func(rows *sql.Rows) (r Revocation, err error) {
		var until int64
		err = rows.Scan(&r.Issuer, &r.TokenID, &r.Key, &until)
		r.Until = fromUnixNano(until)
		return r, err
	}, `SELECT issuer, token, key, until FROM revocations WHERE until = 0 OR until >= ?
		ORDER BY issuer, token, key`, unixNano(after))
	return all, db.fail("revocations", err)
}

// Number implements Tokens. It is no less than the time in milliseconds, so that it grows also where an older state of the
// database was restored.
func (db *DB) Number(ctx context.Context) (n uint64, err error) {
	now := max(db.now().UnixMilli(), 0)
	err = db.write(ctx, false, "number", func(ctx context.Context, tx *transaction) error {
		return tx.QueryRowContext(ctx,
			`UPDATE meta SET value = CASE WHEN value < ? THEN ? ELSE value + 1 END
			WHERE name = 'number' RETURNING value`, now, now).Scan(&n)
	})
	return n, err
}

// spare is how long after the end of its token a revocation stays: clocks of verifiers differ.
const spare = 24 * time.Hour

// keepGone is how long it is known that a node is gone: twice the longest life of a sandbox.
const keepGone = 60 * 24 * time.Hour

// Prune implements Store. What ends by the wall clock is removed when both the wall clock and the
// age of the database say so: neither a clock that jumps ahead nor one that jumps back revives a
// token.
func (db *DB) Prune(ctx context.Context) error {
	return db.write(ctx, false, "prune", func(ctx context.Context, tx *transaction) error {
		age, err := db.ageNow(ctx, tx)
		if err != nil {
			return err
		}
		now := db.now()
		for _, s := range []struct {
			text string
			args []any
		}{
			{"DELETE FROM keys WHERE" + deadKey, []any{int64(age - KeyLife)}},
			{`DELETE FROM objects WHERE ended_age <= ? AND key IS NULL AND (kind NOT IN ('sandbox', 'turn')
				OR node NOT IN (SELECT name FROM nodes WHERE state = 'lost'))`,
				[]any{int64(age - db.options.Keep)}},
			{"DELETE FROM nodes WHERE state = 'gone' AND seen <= ?", []any{unixNano(now.Add(-keepGone))}},
			{`DELETE FROM revocations WHERE until <> 0 AND until <= ?
				AND age + {max}(0, until - revoked) <= ?`,
				[]any{unixNano(now.Add(-spare)), int64(age - spare)}},
			{"DELETE FROM tokens WHERE expires <= ? AND age + {max}(0, expires - issued) <= ?",
				[]any{unixNano(now.Add(-db.options.Keep)), int64(age - db.options.Keep)}},
			// Spans have no age: the newest one bounds a clock that jumped ahead.
			{`DELETE FROM usage WHERE until <= {min}(?, (SELECT max(until) FROM usage)) - ?`,
				[]any{unixNano(now), int64(db.options.KeepUsage)}},
		} {
			if _, err := tx.ExecContext(ctx, s.text, s.args...); err != nil {
				return err
			}
		}
		return nil
	})
}
