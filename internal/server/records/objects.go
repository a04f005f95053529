package records

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

const columns = `seq, kind, id, tenant, owner, node, name, session, template, state, result, reason,
	paused, labels, detail, created, changed, ended, expires, managed_by`

// A row is an object with its place in the order of creation.
type row struct {
	Object
	seq int64
}

func scanRow(rows *sql.Rows) (r row, err error) {
	var labels string
	var created, changed, ended, expires int64
	err = rows.Scan(&r.seq, &r.Kind, &r.ID, &r.Tenant, &r.Owner, &r.Node, &r.Name, &r.Session,
		&r.Template, &r.State, &r.Result, &r.Reason, &r.Paused, &labels, &r.Detail,
		&created, &changed, &ended, &expires, &r.ManagedBy)
	if err != nil {
		return r, err
	}
	r.Created, r.Changed = fromUnixNano(created), fromUnixNano(changed)
	r.Ended, r.Expires = fromUnixNano(ended), fromUnixNano(expires)
	if labels != "{}" {
		err = json.Unmarshal([]byte(labels), &r.Labels)
	}
	if len(r.Detail) == 0 {
		r.Detail = nil
	}
	return r, err
}

// plain returns the objects of rows.
func plain(rows []row) []Object {
	all := make([]Object, len(rows))
	for i, r := range rows {
		all[i] = r.Object
	}
	return all
}

// Create implements Objects.
func (db *DB) Create(ctx context.Context, key *Key, objects ...Object) (made []Object, old bool,
	err error) {
	if len(objects) == 0 {
		return nil, false, invalid("create", "the objects", "there are none")
	}
	for i := range objects {
		if err := objects[i].check("create"); err != nil {
			return nil, false, err
		}
		if objects[i].Tenant != objects[0].Tenant {
			return nil, false, invalid("create", "the objects", "are of several tenants")
		}
	}
	if key != nil {
		if err := key.check(objects); err != nil {
			return nil, false, err
		}
	}
	err = db.write(ctx, false, "create", func(ctx context.Context, tx *transaction) (err error) {
		made, old, err = db.create(ctx, tx, key, objects)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return made, old, nil
}

func (db *DB) create(ctx context.Context, tx *transaction, key *Key, objects []Object) (made []Object,
	old bool, err error) {
	tenant := objects[0].Tenant
	if err := db.useTenant(ctx, tx, tenant); err != nil {
		return nil, false, err
	}
	var id sql.NullInt64
	if key != nil {
		made, err = db.useKey(ctx, tx, *key, &id)
		if err != nil || len(made) > 0 {
			return made, len(made) > 0, err
		}
	}
	for _, o := range objects {
		o.State, o.Created = First(o.Kind), db.now()
		o.Changed, o.Ended, o.Paused, o.Reason, o.Result = o.Created, time.Time{}, false, "", ""
		if err := insert(ctx, tx, &o, id); err != nil {
			return nil, false, err
		}
		made = append(made, o)
	}
	return made, false, nil
}

// useTenant stores a tenant that is new, and refuses one that is disabled.
func (db *DB) useTenant(ctx context.Context, tx *transaction, name string) error {
	var disabled bool
	err := tx.QueryRowContext(ctx, "SELECT disabled FROM tenants WHERE name = ?", name).
		Scan(&disabled)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = tx.ExecContext(ctx, "INSERT INTO tenants VALUES (?, FALSE, ?)", name,
			unixNano(db.now()))
	}
	if disabled {
		return invalid("create", name, "the tenant is disabled").WithHint("ask the operator")
	}
	return err
}

// useKey returns the objects of a key that was used, or stores the key and sets its number.
func (db *DB) useKey(ctx context.Context, tx *transaction, k Key, id *sql.NullInt64) ([]Object, error) {
	// Most keys are new: the first attempt to store one decides.
	const store = `INSERT INTO keys (tenant, method, key, request) VALUES (?, ?, ?, ?)
		ON CONFLICT (tenant, method, key) DO NOTHING RETURNING id`
	for {
		err := tx.QueryRowContext(ctx, store, k.Tenant, k.Method, k.Key, string(k.Request)).Scan(id)
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		var request string
		if err := tx.QueryRowContext(ctx, `SELECT id, request FROM keys
			WHERE tenant = ? AND method = ? AND key = ?`, k.Tenant, k.Method, k.Key).
			Scan(id, &request); err != nil {
			return nil, err
		}
		age, err := db.ageNow(ctx, tx)
		if err != nil {
			return nil, err
		}
		done, err := tx.ExecContext(ctx, "DELETE FROM keys WHERE id = ? AND"+deadKey, id.Int64,
			int64(age-KeyLife))
		if err != nil {
			return nil, err
		}
		n, err := done.RowsAffected()
		switch {
		case err != nil:
			return nil, err
		case n == 0 && request != string(k.Request):
			return nil, usedFor(k)
		case n == 0:
			rows, err := query(ctx, tx, scanRow,
				"SELECT "+columns+" FROM objects WHERE key = ? ORDER BY seq", id.Int64)
			return plain(rows), err
		}
	}
}

// deadKey is the condition under which the life of a key is over.
const deadKey = ` NOT EXISTS (SELECT 1 FROM objects WHERE objects.key = keys.id
	AND (ended_age IS NULL OR ended_age > ?))`

// insert stores a new object as it is.
func insert(ctx context.Context, tx *transaction, o *Object, key sql.NullInt64) error {
	if err := checkFree(ctx, tx, o); err != nil {
		return err
	}
	labels, err := json.Marshal(o.Labels)
	if err != nil {
		return err
	}
	if len(o.Labels) == 0 {
		labels = []byte("{}")
	}
	done, err := tx.ExecContext(ctx, `INSERT INTO objects (kind, id, tenant, owner, node, name, session,
		template, state, result, reason, paused, labels, detail, created, changed, ended, expires,
		key, managed_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)
		ON CONFLICT (kind, id) DO NOTHING`,
		o.Kind, o.ID, o.Tenant, o.Owner, o.Node, o.Name, o.Session, o.Template, o.State, o.Result,
		o.Reason, o.Paused, string(labels), blob(o.Detail), unixNano(o.Created),
		unixNano(o.Changed), unixNano(o.Expires), key, o.ManagedBy)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return invalid("create", o.ID, "the ID exists").WithHint("use a new ID")
}

func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// checkFree reports a name that another object of the tenant has.
func checkFree(ctx context.Context, tx *transaction, o *Object) error {
	if o.Name == "" {
		return nil
	}
	var other string
	err := tx.QueryRowContext(ctx, `SELECT id FROM objects
		WHERE tenant = ? AND kind = ? AND name = ? AND name <> '' AND ended_age IS NULL
			AND id <> ?`, o.Tenant, o.Kind, o.Name, o.ID).Scan(&other)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	return invalid("create", o.Name, "is the name of %s %s", o.Kind, other).
		WithHint("use another name")
}

// errNone is the internal error of find.
var errNone = errors.New("there is none")

func find(ctx context.Context, q querier, kind Kind, id string) (row, error) {
	rows, err := query(ctx, q, scanRow,
		"SELECT "+columns+" FROM objects WHERE kind = ? AND id = ?", kind, id)
	if err == nil && len(rows) == 0 {
		err = errNone
	}
	if err != nil {
		return row{}, err
	}
	return rows[0], nil
}

// notFound is the same for an object that does not exist and for one of another tenant or node.
func notFound(op turnstone.Op, kind Kind, id string) error {
	return turnstone.Errorf("records."+op, turnstone.KindNotFound, string(kind),
		"%.80q does not exist", id).WithHint("list what exists")
}

// Object implements Objects.
func (db *DB) Object(ctx context.Context, tenant string, kind Kind, id string) (Object, error) {
	// The tenant is part of the query: a row of another tenant is not read.
	return db.one(ctx, kind, id, "kind = ? AND id = ? AND tenant = ?", kind, id, tenant)
}

// Named implements Objects.
func (db *DB) Named(ctx context.Context, tenant string, kind Kind, name string) (Object, error) {
	return db.one(ctx, kind, name, // as in the index objects_name
		"tenant = ? AND kind = ? AND name = ? AND name <> '' AND ended_age IS NULL", tenant, kind,
		name)
}

// one returns the object that a condition selects.
func (db *DB) one(ctx context.Context, kind Kind, subject, where string, args ...any) (Object,
	error) {
	rows, err := query(ctx, db.reads, scanRow, "SELECT "+columns+" FROM objects WHERE "+where,
		args...)
	if err == nil && len(rows) == 0 {
		return Object{}, notFound("object", kind, subject)
	} else if err != nil {
		return Object{}, db.fail("object", err)
	}
	return rows[0].Object, nil
}

// Used implements Objects.
func (db *DB) Used(ctx context.Context, k Key) ([]Object, error) {
	rows, err := query(ctx, db.reads, func(rows *sql.Rows) (r [2]int64, err error) {
		var request string
		err = rows.Scan(&r[0], &request)
		if err == nil && request != string(k.Request) {
			err = usedFor(k)
		}
		return r, err
	}, "SELECT id, request FROM keys WHERE tenant = ? AND method = ? AND key = ?", k.Tenant,
		k.Method, k.Key)
	if err != nil || len(rows) == 0 {
		return nil, db.fail("used", err)
	}
	all, err := query(ctx, db.reads, scanRow,
		"SELECT "+columns+" FROM objects WHERE key = ? ORDER BY seq", rows[0][0])
	return plain(all), db.fail("used", err)
}

// usedFor is the error about a key that another request had.
func usedFor(k Key) error {
	return invalid("create", k.Key, "the idempotency key was used for another request").
		WithHint("use a new key for each new request")
}

// List implements Objects.
func (db *DB) List(ctx context.Context, tenant string, f Filter, p Page) ([]Object, string, error) {
	if err := f.check(); err != nil {
		return nil, "", err
	}
	size, before, err := db.begin(p, tenant, f)
	if err != nil {
		return nil, "", err
	}
	text, args := f.query(db.d, tenant, before, size+1)
	rows, err := query(ctx, db.reads, scanRow, text, args...)
	if err != nil {
		return nil, "", db.fail("list", err)
	}
	next := ""
	if len(rows) > size {
		rows = rows[:size]
		next = db.token(rows[size-1].seq, tenant, f)
	}
	return plain(rows), next, nil
}

// query returns the query for the objects of a filter before a position.
func (f *Filter) query(d dialect, tenant string, before int64, most int) (text string, args []any) {
	where, args := f.where(d)
	args = append([]any{tenant, f.Kind, before}, args...)
	return "SELECT " + columns + ` FROM objects
		WHERE tenant = ? AND kind = ? AND seq < ?` + where + " ORDER BY seq DESC LIMIT ?", append(args, most)
}

// where returns the conditions of a filter beside the kind.
func (f *Filter) where(d dialect) (text string, args []any) {
	var b strings.Builder
	and := func(condition string, values ...any) {
		b.WriteString(" AND " + condition)
		args = append(args, values...)
	}
	if len(f.Sessions) > 0 {
		and("session IN (?"+strings.Repeat(", ?", len(f.Sessions)-1)+")", anys(f.Sessions)...)
	}
	for column, value := range map[string]string{"name": f.Name, "session": f.Session,
		"template": f.Template, "node": f.Node} {
		if value != "" {
			and(column+" = ?", value)
		}
	}
	if f.Prefix != "" {
		and(d.hasPrefix("name"), len(f.Prefix), []byte(f.Prefix))
	}
	if f.Named {
		and("name <> ''")
	}
	if len(f.States) > 0 {
		and("state IN (?"+strings.Repeat(", ?", len(f.States)-1)+")", anys(f.States)...)
	}
	if len(f.IDs) > 0 {
		and("id IN (?"+strings.Repeat(", ?", len(f.IDs)-1)+")", anys(f.IDs)...)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Labels)) {
		condition, label := d.hasLabel(name)
		and(condition, label, f.Labels[name])
	}
	if by := f.ManagedBy; strings.HasSuffix(by, "/") { // as in the index objects_managed, like the next
		and("managed_by >= ? AND managed_by < ? AND managed_by <> ''", by, by[:len(by)-1]+"0") // '0' is '/'+1
	} else if by != "" {
		and("managed_by = ? AND managed_by <> ''", by)
	}
	if !f.Since.IsZero() {
		and("created >= ?", unixNano(f.Since))
	}
	if !f.Until.IsZero() {
		and("created < ?", unixNano(f.Until))
	}
	return b.String(), args
}

func anys[T any](list []T) (all []any) {
	for v := range slices.Values(list) {
		all = append(all, v)
	}
	return all
}
