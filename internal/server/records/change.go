package records

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"time"

	"turnstone.dev/turnstone"
)

// Change implements Objects.
func (db *DB) Change(ctx context.Context, node string, kind Kind, id string, c Change) (Object,
	error) {
	if err := c.check(kind); err != nil {
		return Object{}, err
	}
	var after Object
	err := db.write(ctx, c.reported(kind), "change", func(ctx context.Context, tx *transaction) error {
		r, err := find(ctx, tx, kind, id)
		if errors.Is(err, errNone) || err == nil && r.Node != node {
			return notFound("change", kind, id)
		} else if err != nil {
			return err
		}
		after, err = db.apply(ctx, tx, r, c)
		return err
	})
	return after, err
}

// reported reports a change that the node reports again if it is lost.
func (c *Change) reported(kind Kind) bool {
	if kind != Sandbox || c.Result != "" || c.Reason != "" || c.Paused != nil || c.Name != nil ||
		c.Session != nil || c.Expires != nil || c.Node != nil {
		return false
	}
	if c.Event == Configured { // a repetition of the call makes the node answer the same sandbox
		return true
	}
	return c.Detail == nil && (c.Event == CommandStarted || c.Event == CommandsEnded || c.State == Ready ||
		c.State == Running)
}

func (c *Change) check(kind Kind) error {
	switch {
	case First(kind) == "":
		return invalid("change", "the change", "%.40q is not a kind", string(kind))
	case c.Node != nil && (kind != Session && kind != Turn || !isID(*c.Node)):
		return invalid("change", "the change", "a %.40s does not move to %.140q", string(kind), *c.Node)
	case c.Event != "" && c.State != "":
		return invalid("change", "the change", "has both an event and a state")
	case !isText(c.Result), !isText(c.Reason), c.Name != nil && !isText(*c.Name),
		c.Session != nil && !isText(*c.Session):
		return invalid("change", "the change", "has a text that cannot be stored")
	case len(c.Detail) > MaxDetail:
		return invalid("change", "the change", "the detail has %d bytes; the limit is %d",
			len(c.Detail), MaxDetail)
	case c.Expires != nil && !isTime(*c.Expires):
		return invalid("change", "the change", "the time %v is out of range", *c.Expires)
	}
	return nil
}

// next returns the state after a change.
func (c *Change) next(o *Object) (State, error) {
	switch {
	case c.Event != "":
		return Next(o.Kind, o.State, c.Event)
	case c.State == "":
		return o.State, nil
	case !Reaches(o.Kind, o.State, c.State):
		return "", invalid("change", o.ID, "a %s that is %s does not become %.40q", o.Kind,
			o.State, string(c.State)).WithHint("read the object's state again")
	}
	return c.State, nil
}

// apply changes a row and returns its object.
func (db *DB) apply(ctx context.Context, tx *transaction, r row, c Change) (Object, error) {
	o := r.Object
	state, err := c.next(&o)
	if err != nil {
		return o, err
	}
	paused := o.Paused
	if c.Paused != nil {
		paused = *c.Paused
	}
	live := o.Kind == Sandbox && (state == Ready || state == Running)
	if c.Paused != nil && paused && !live {
		return o, invalid("change", o.ID, "a %s that is %s cannot be paused", o.Kind, state).
			WithHint("wait until it is ready")
	}
	paused = paused && live
	// A wall clock that went back makes no end before the beginning.
	now := db.now()
	if now.Before(o.Changed) {
		now = o.Changed
	}
	ends := state.Final() && !o.State.Final()
	if state != o.State || paused != o.Paused {
		o.Changed = now
	}
	o.State, o.Paused = state, paused
	if c.Result != "" {
		o.Result = c.Result
	}
	if state.Final() && (ends || c.Reason != "") {
		if o.Reason = c.Reason; o.Reason == "" {
			o.Reason = string(c.Event)
		}
	}
	if c.Detail != nil {
		o.Detail = c.Detail
	}
	if c.Expires != nil {
		o.Expires = *c.Expires
	}
	if c.Session != nil {
		o.Session = *c.Session
	}
	if c.Node != nil {
		o.Node = *c.Node
	}
	if c.Name != nil && *c.Name != o.Name {
		o.Name = *c.Name
		if !state.Final() {
			if err := checkFree(ctx, tx, &o); err != nil {
				return o, err
			}
		}
	}
	return o, db.update(ctx, tx, r.seq, &o, ends)
}

// update stores what can change of an object.
func (db *DB) update(ctx context.Context, tx *transaction, seq int64, o *Object, ends bool) error {
	if ends {
		age, err := db.ageNow(ctx, tx)
		if err != nil {
			return err
		}
		o.Ended = o.Changed
		_, err = tx.ExecContext(ctx, "UPDATE objects SET ended = ?, ended_age = ? WHERE seq = ?",
			unixNano(o.Ended), int64(age), seq)
		if err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `UPDATE objects SET state = ?, paused = ?, changed = ?,
		result = ?, reason = ?, detail = ?, expires = ?, name = ?, session = ?, node = ? WHERE seq = ?`,
		o.State, o.Paused, unixNano(o.Changed), o.Result, o.Reason, blob(o.Detail),
		unixNano(o.Expires), o.Name, o.Session, o.Node, seq)
	return err
}

// Mark implements Store.
func (db *DB) Mark(ctx context.Context) (mark Mark, err error) {
	// A transaction of the writer: a Create that has not returned is before or after.
	err = db.write(ctx, false, "mark", func(ctx context.Context, tx *transaction) error {
		return tx.QueryRowContext(ctx, "SELECT COALESCE(max(seq), 0) FROM objects").Scan(&mark)
	})
	return mark, err
}

// Reconcile implements Store. It changes all records in one transaction.
func (db *DB) Reconcile(ctx context.Context, r Report) (out Outcome, err error) {
	if !isID(r.Node) {
		return out, invalid("reconcile", "the list", "%.140q is not the name of a node", r.Node)
	}
	for i := range r.Objects {
		o := &r.Objects[i]
		if First(o.Kind) == "" || !isID(o.ID) || !Reaches(o.Kind, First(o.Kind), o.State) {
			return out, invalid("reconcile", "the list", "%.140q is %.40q, which no %.40s is", o.ID,
				string(o.State), string(o.Kind))
		}
	}
	err = db.write(ctx, false, "reconcile", func(ctx context.Context, tx *transaction) error {
		out, err = db.reconcile(ctx, tx, r)
		return err
	})
	if err != nil {
		return Outcome{}, err
	}
	return out, nil
}

type ref struct {
	kind Kind
	id   string
}

func (db *DB) reconcile(ctx context.Context, tx *transaction, r Report) (out Outcome, err error) {
	present := map[ref]bool{}
	for _, o := range r.Objects {
		present[ref{o.Kind, o.ID}] = true
		if err := db.agree(ctx, tx, r, o, &out); err != nil {
			return out, err
		}
	}
	pending := map[string]bool{}
	for _, id := range r.Pending {
		pending[id] = true
	}
	rows, err := query(ctx, tx, scanRow, "SELECT "+columns+` FROM objects
		WHERE node = ? AND ended_age IS NULL AND seq <= ? ORDER BY seq`, r.Node, int64(r.Mark))
	if err != nil {
		return out, err
	}
	for _, x := range rows {
		if present[ref{x.Kind, x.ID}] || pending[x.ID] || r.Stays != nil && r.Stays(x.Object) {
			continue
		}
		c := Change{Event: Lost}
		if x.Kind == Turn && x.State == Running {
			c.Result = ResultError
		}
		o, err := db.apply(ctx, tx, x, c)
		if err != nil {
			return out, err
		}
		out.Lost = append(out.Lost, o)
	}
	return out, nil
}

// ResultError is the result of a turn whose node lost it.
const ResultError = "error"

// agree makes a record agree with what its node reports.
func (db *DB) agree(ctx context.Context, tx *transaction, of Report, o Object, out *Outcome) error {
	node := of.Node
	r, err := find(ctx, tx, o.Kind, o.ID)
	moves := err == nil && o.Kind == Turn && r.Node != node && o.Tenant == r.Tenant && !r.State.Final() &&
		of.Moves != nil && of.Moves(r.Object, o)
	switch {
	case errors.Is(err, errNone) && of.Known && (o.Kind == Sandbox || o.Kind == Turn):
		if !o.State.Final() {
			out.Surplus = append(out.Surplus, o)
		}
		return nil
	case errors.Is(err, errNone):
		return db.adopt(ctx, tx, node, o, out)
	case err != nil:
		return err
	case r.Node == node && o.Tenant == r.Tenant && r.returns(o):
		return db.revive(ctx, tx, r, o, out)
	case r.Node != node && !moves, o.Tenant != "" && o.Tenant != r.Tenant, r.State.Final():
		if !o.State.Final() {
			out.Surplus = append(out.Surplus, o)
		}
		return nil
	case !Reaches(o.Kind, r.State, o.State):
		return nil // an old report, such as "creating" of what is ready
	}
	o.Tenant = r.Tenant
	c := Change{State: o.State, Result: o.Result, Reason: o.Reason, Detail: o.Detail}
	if moves {
		c.Node = &node
	}
	if o.Session != "" && o.Session != r.Session && (IsSessionID(o.Session) || !IsSessionID(r.Session)) {
		c.Session = &o.Session
	}
	if o.Kind == Session && o.Name != "" && o.Name != r.Name && !taken(checkFree(ctx, tx, &o)) {
		c.Name = &o.Name // renamed at the node
	}
	if c.Node == nil && r.State == o.State && r.Paused == o.Paused && c.Session == nil && c.Name == nil &&
		(o.Detail == nil || bytes.Equal(r.Detail, o.Detail)) {
		return nil
	}
	if !o.State.Final() && o.State != Creating && o.Kind == Sandbox {
		c.Paused = &o.Paused
	}
	if err := c.check(o.Kind); err != nil {
		return err
	}
	after, err := db.apply(ctx, tx, r, c)
	if err != nil {
		return err
	}
	out.Changed = append(out.Changed, after)
	return nil
}

// taken reports whether an error of checkFree is about the name.
func taken(err error) bool { return turnstone.KindOf(err) == turnstone.KindInvalid && err != nil }

// returns reports whether the node has again what it had lost: a folder that was not mounted, for
// example. Sandboxes do not return: their machines are gone or of no use.
func (r *row) returns(o Object) bool {
	return (o.Kind == Session || o.Kind == Snapshot) && r.State.Final() && !o.State.Final() &&
		r.Reason == LostReason
}

// revive makes an object live again.
func (db *DB) revive(ctx context.Context, tx *transaction, r row, o Object, out *Outcome) error {
	r.State, r.Reason, r.Ended, r.Changed = o.State, "", time.Time{}, db.now()
	if r.Name = o.Name; taken(checkFree(ctx, tx, &r.Object)) {
		r.Name = "" // the name was given away meanwhile
	}
	if o.Detail != nil && len(o.Detail) <= MaxDetail {
		r.Detail = o.Detail
	}
	err := db.update(ctx, tx, r.seq, &r.Object, false) // first: names of what is live are unique
	if err == nil {
		_, err = tx.ExecContext(ctx,
			"UPDATE objects SET ended = 0, ended_age = NULL WHERE seq = ?", r.seq)
	}
	out.Adopted = append(out.Adopted, r.Object)
	return err
}

// adopt makes the record of an object that only its node knows.
func (db *DB) adopt(ctx context.Context, tx *transaction, node string, o Object, out *Outcome) error {
	if o.State.Final() {
		return nil
	}
	o.Node = node
	if o.Tenant == "" || o.check("reconcile") != nil {
		out.Surplus = append(out.Surplus, o)
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO tenants VALUES (?, FALSE, ?)
		ON CONFLICT (name) DO NOTHING`, o.Tenant, unixNano(db.now()))
	if err != nil {
		return err
	}
	if !isTime(o.Created) || o.Created.IsZero() {
		o.Created = db.now()
	}
	o.Changed = o.Created
	if err := checkFree(ctx, tx, &o); taken(err) {
		o.Name = "" // the name was given away meanwhile
	} else if err != nil {
		return err
	}
	if err := insert(ctx, tx, &o, sql.NullInt64{}); err != nil {
		return err
	}
	out.Adopted = append(out.Adopted, o)
	return nil
}
