package session

import (
	"context"
	"database/sql"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
)

// A Home is a named tree that belongs to no session.
type Home struct {
	Owner string // the key of a server's client; empty: this host's user
	Name  string
	Tree  turnstone.TreeRef
	Bytes int64            // of its files
	Turn  turnstone.TurnID // the last that used it; empty: none
	Used  time.Time
}

// A HomeUse is a turn's use of a home.
type HomeUse struct {
	Turn         turnstone.TurnID
	Owner, Name  string
	Began, Ended turnstone.TreeRef
	Bytes        int64 // of the files of Ended; HomeUses does not return it
	New          bool  // there was no such home when the turn began
	// Lease is the turn's exclusive use of the home; nil: nobody else can use it.
	Lease lease.Lease
}

// Owner returns whose homes the context's operations use; empty: those of this host's user.
func Owner(ctx context.Context) string {
	if a, ok := ctx.Value(accessKey{}).(Access); ok {
		return a.Owner()
	}
	return ""
}

// Homes returns the homes of the context's owner, or of all owners if the context is not limited.
// They are sorted by owner and name.
func (db *DB) Homes(ctx context.Context) ([]Home, error) {
	if !Limited(ctx) {
		return homes(ctx, db.sql, "ORDER BY owner, name")
	}
	return homes(ctx, db.sql, "WHERE owner = ? ORDER BY name", Owner(ctx))
}

// AllHomes returns the homes of all owners, which the store keeps.
func (db *DB) AllHomes(ctx context.Context) ([]Home, error) {
	return homes(ctx, db.sql, "ORDER BY owner, name")
}

// Home returns the home of the context's owner with this name; false if there is none.
func (db *DB) Home(ctx context.Context, name string) (Home, bool, error) {
	all, err := homes(ctx, db.sql, "WHERE owner = ? AND name = ?", Owner(ctx), name)
	if err != nil || len(all) == 0 {
		return Home{}, false, err
	}
	return all[0], true, nil
}

func homes(ctx context.Context, q querier, clause string, args ...any) ([]Home, error) {
	return query(ctx, q, "homes", func(rows *sql.Rows) (h Home, err error) {
		var used int64
		err = rows.Scan(&h.Owner, &h.Name, &h.Tree.Root, &h.Tree.Hash, &h.Bytes, &h.Turn, &used)
		h.Used = fromUnixNano(used)
		return h, err
	}, "SELECT owner, name, root, hash, bytes, turn, used FROM homes "+clause, args...)
}

// AddHome adds a home of the context's owner, whose tree is durable. If there is one with this name,
// the error is of kind Unavailable.
func (db *DB) AddHome(ctx context.Context, name string, tree turnstone.TreeRef,
	bytes int64) error {
	return db.write(ctx, func(tx *txn) error {
		if err := db.announces(ctx, tx); err != nil {
			return err
		}
		u := &HomeUse{Owner: Owner(ctx), Name: name, Ended: tree, Bytes: bytes, New: true}
		return db.setHome(ctx, tx, u)
	})
}

// RemoveHome removes the home of the context's owner with this name, and what is known about its
// earlier states; false if there is none.
func (db *DB) RemoveHome(ctx context.Context, name string) (removed bool, err error) {
	owner := Owner(ctx)
	err = db.write(ctx, func(tx *txn) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM homes WHERE owner = ? AND name = ?", owner, name)
		if err != nil {
			return db.fault("home", name, err)
		}
		n, err := res.RowsAffected()
		if removed = n > 0; err != nil {
			return db.fault("home", name, err)
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM home_uses WHERE owner = ? AND name = ?", owner, name)
		return db.fault("home", name, err)
	})
	return removed, err
}

// useHome records a turn's use of a home, and makes the tree that the turn ended with the home's.
func (db *DB) useHome(ctx context.Context, tx *txn, u *HomeUse) error {
	if u.Lease != nil {
		if err := u.Lease.Check(ctx, tx); err != nil {
			return db.fault("home", u.Name, err)
		}
	}
	if u.Began == u.Ended && !u.New { // whatever the home is now, it stays so
		res, err := tx.ExecContext(ctx, "UPDATE homes SET turn = ?, used = ? "+
			"WHERE owner = ? AND name = ? AND root = ?", u.Turn, unixNano(db.now()), u.Owner, u.Name,
			u.Began.Root)
		if err != nil {
			return db.fault("home", u.Name, err)
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return db.fault("home", u.Name, err) // the store may no longer have the tree
		}
	} else if err := db.setHome(ctx, tx, u); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO home_uses (turn, owner, name, began_root, "+
		"began_hash, ended_root, ended_hash, at) VALUES (?,?,?,?,?,?,?,?)", u.Turn, u.Owner, u.Name,
		u.Began.Root, u.Began.Hash, u.Ended.Root, u.Ended.Hash, unixNano(db.now()))
	return db.fault("home", u.Name, err)
}

// setHome replaces the tree of a home, which must be the one that u began with.
func (db *DB) setHome(ctx context.Context, tx *txn, u *HomeUse) error {
	have, err := homes(ctx, tx, "WHERE owner = ? AND name = ?", u.Owner, u.Name)
	if err != nil {
		return err
	}
	if u.New != (len(have) == 0) || !u.New && have[0].Tree.Root != u.Began.Root {
		return turnstone.Errorf("session.home", turnstone.KindUnavailable, "home "+u.Name,
			"was changed or removed meanwhile, and keeps that state").
			WithHint("run the turn again")
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO homes (owner, name, root, hash, bytes, turn, used) "+
		"VALUES (?1,?2,?3,?4,?5,?6,?7) ON CONFLICT (owner, name) DO UPDATE SET root = ?3, "+
		"hash = ?4, bytes = ?5, turn = ?6, used = ?7", u.Owner, u.Name, u.Ended.Root, u.Ended.Hash,
		u.Bytes, u.Turn, unixNano(db.now()))
	return db.fault("home", u.Name, err)
}

// HomeUse returns the use of a home by the turn id; false if there is none, or if it was not the
// context's owner's.
func (db *DB) HomeUse(ctx context.Context, id turnstone.TurnID) (HomeUse, bool, error) {
	all, err := homeUses(ctx, db.sql, "WHERE turn = ? AND owner = ?", id, Owner(ctx))
	if err != nil || len(all) == 0 {
		return HomeUse{}, false, err
	}
	return all[0], true, nil
}

// RecordHomeUse is HomeUse for the turn with this record.
func (db *DB) RecordHomeUse(ctx context.Context, record turnstone.Digest) (HomeUse, bool, error) {
	all, err := homeUses(ctx, db.sql,
		"WHERE turn IN (SELECT id FROM turns WHERE record = ?) AND owner = ?", record, Owner(ctx))
	if err != nil || len(all) == 0 {
		return HomeUse{}, false, err
	}
	return all[0], true, nil
}

// HomeUses returns the uses of a home of the context's owner, newest first, at most limit.
func (db *DB) HomeUses(ctx context.Context, name string, limit int) ([]HomeUse, error) {
	return homeUses(ctx, db.sql, "WHERE owner = ? AND name = ? ORDER BY at DESC LIMIT ?",
		Owner(ctx), name, limit)
}

// AllHomeUses returns the uses of all homes, whose trees the store keeps.
func (db *DB) AllHomeUses(ctx context.Context) ([]HomeUse, error) {
	return homeUses(ctx, db.sql, "ORDER BY turn")
}

func homeUses(ctx context.Context, q querier, clause string, args ...any) ([]HomeUse, error) {
	return query(ctx, q, "homes", func(rows *sql.Rows) (u HomeUse, err error) {
		return u, rows.Scan(&u.Turn, &u.Owner, &u.Name, &u.Began.Root, &u.Began.Hash, &u.Ended.Root,
			&u.Ended.Hash)
	}, "SELECT turn, owner, name, began_root, began_hash, ended_root, ended_hash FROM home_uses "+
		clause, args...)
}
