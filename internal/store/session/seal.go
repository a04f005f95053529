package session

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"

	"turnstone.dev/turnstone"
)

// A Sealer makes the domains of new sessions, and seals what the database keeps of their turns'
// contents: titles, and the digests of states, which would show that two sessions have the same
// files. Its methods are safe for concurrent use. They may wait for a service with keys, so they
// are not called in a transaction.
type Sealer interface {
	// NewDomain returns the domain of a new session; empty: the session is not sealed.
	NewDomain(ctx context.Context) (turnstone.DomainID, error)
	// Settle says that the session of a domain that NewDomain returned is stored, or never will be.
	Settle(d turnstone.DomainID)
	// SealText seals text for one place, which OpenText has to name too.
	SealText(ctx context.Context, d turnstone.DomainID, place, text string) (string, error)
	// OpenText returns the text. If the domain's key is not at hand, the error is of kind
	// Unavailable, Timeout or Denied, and if it is lost, of kind NotFound.
	OpenText(ctx context.Context, d turnstone.DomainID, place, sealed string) (string, error)
}

// Seal sets what seals new sessions and opens sealed ones. Without it, new sessions are not sealed,
// and sealed ones are locked.
func (db *DB) Seal(s Sealer) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.sealer = s
}

func (db *DB) theSealer() Sealer {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.sealer
}

// newDomain returns the domain of a new session.
func (db *DB) newDomain(ctx context.Context) (turnstone.DomainID, error) {
	s := db.theSealer()
	if s == nil {
		return "", nil
	}
	return s.NewDomain(ctx)
}

// settle is called after a domain that newDomain returned is stored, or will not be.
func (db *DB) settle(d turnstone.DomainID) {
	if s := db.theSealer(); s != nil && d != "" {
		s.Settle(d)
	}
}

// UsesDomain reports whether a session is in a domain.
func (db *DB) UsesDomain(ctx context.Context, d turnstone.DomainID) (bool, error) {
	all, err := sessions(ctx, db.sql, "WHERE domain = ? LIMIT 1", d)
	return len(all) > 0, err
}

// domainOf returns the domain of a session; a new one if s is empty.
func (db *DB) domainOf(ctx context.Context, s turnstone.SessionID) (turnstone.DomainID, error) {
	if s == "" {
		return db.newDomain(ctx)
	}
	found, err := oneSession(ctx, db.sql, string(s), "id = ?", s)
	return found.Domain, err
}

const (
	titlePlace = "turns/title/"
	statePlace = "turns/state/"
)

// sealed returns t as it is stored.
func (db *DB) sealed(ctx context.Context, t turnstone.Turn) (turnstone.Turn, error) {
	title, err := db.sealText(ctx, t.Domain, titlePlace+string(t.ID), t.Title)
	if err != nil {
		return t, err
	}
	state, err := db.sealText(ctx, t.Domain, statePlace+string(t.ID), string(t.State))
	t.Title, t.State = title, turnstone.Digest(state)
	return t, err
}

// sealText leaves an empty text as it is: it says that there is none.
func (db *DB) sealText(ctx context.Context, d turnstone.DomainID, place, text string) (string,
	error) {
	if d == "" || text == "" {
		return text, nil
	}
	s := db.theSealer()
	if s == nil {
		return "", locked(d)
	}
	return s.SealText(ctx, d, place, text)
}

// opened opens turns that were read. Those whose key is not at hand are marked as locked.
func (db *DB) opened(ctx context.Context, all []turnstone.Turn, err error) ([]turnstone.Turn,
	error) {
	for i := range all {
		if err == nil && all[i].Domain != "" {
			all[i], err = db.open(ctx, all[i])
		}
	}
	return all, err
}

// openedOne is opened for one turn.
func (db *DB) openedOne(ctx context.Context, t turnstone.Turn, err error) (turnstone.Turn, error) {
	if err != nil || t.Domain == "" {
		return t, err
	}
	return db.open(ctx, t)
}

// closed marks the sealed turns of all as locked.
func closed(all []turnstone.Turn) []turnstone.Turn {
	for i := range all {
		if t := &all[i]; t.Domain != "" {
			t.Title, t.State, t.Locked = "", "", true
		}
	}
	return all
}

func (db *DB) open(ctx context.Context, t turnstone.Turn) (turnstone.Turn, error) {
	title, err := db.openText(ctx, t.Domain, titlePlace+string(t.ID), t.Title)
	if err == nil {
		var state string
		state, err = db.openText(ctx, t.Domain, statePlace+string(t.ID), string(t.State))
		t.State = turnstone.Digest(state)
	}
	t.Title = title
	switch turnstone.KindOf(err) {
	case turnstone.KindUnavailable, turnstone.KindTimeout, turnstone.KindDenied, // a service with keys
		turnstone.KindNotFound: // the key is lost
		if ctx.Err() != nil {
			return t, err
		}
		t.Title, t.State, t.Locked = "", "", true
		return t, nil
	}
	return t, err
}

func (db *DB) openText(ctx context.Context, d turnstone.DomainID, place, sealed string) (string,
	error) {
	if sealed == "" {
		return "", nil
	}
	s := db.theSealer()
	if s == nil {
		return "", locked(d)
	}
	return s.OpenText(ctx, d, place, sealed)
}

func locked(d turnstone.DomainID) error {
	return turnstone.NewError("session.open", turnstone.KindUnavailable, string(d),
		turnstone.ErrLocked)
}

// insertNeeds notes what a turn keeps from deletion, or with an empty turn what the session keeps.
func insertNeeds(ctx context.Context, tx *txn, s turnstone.SessionID, t turnstone.TurnID,
	names []turnstone.Digest) error {
	if len(names) == 0 {
		return nil
	}
	list := make([]byte, 0, len(names)*sha256.Size)
	for _, n := range names {
		b, err := hex.DecodeString(n.Hex())
		if err != nil || len(b) != sha256.Size {
			return turnstone.Errorf("session.needs", turnstone.KindInternal, string(n),
				"is not the name of an object")
		}
		list = append(list, b...)
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO needs (session, turn, names) VALUES (?,?,?)", s,
		sql.NullString{String: string(t), Valid: t != ""}, list)
	return tx.fault("needs", string(s), err)
}

// Needs calls keep with the names of the objects that the turns of sealed sessions need, except the
// turns in without. A turn needs what its ancestors need too, which are kept with it.
func (db *DB) Needs(ctx context.Context, without map[turnstone.TurnID]bool,
	keep func(name turnstone.Digest) bool) error {
	const page = 100 // rows, so that not all are in memory
	for last := int64(-1); ; {
		rows, err := query(ctx, db.sql, "needs", func(rows *sql.Rows) (n needs, err error) {
			return n, rows.Scan(&n.row, &n.turn, &n.names)
		}, "SELECT rowid, coalesce(turn, ''), names FROM needs WHERE rowid > ? "+
			"ORDER BY rowid LIMIT ?", last, page)
		if err != nil {
			return err
		}
		for _, n := range rows {
			last = n.row
			if without[n.turn] {
				continue
			}
			for names := n.names; len(names) >= sha256.Size; names = names[sha256.Size:] {
				keep(turnstone.Digest("sha256:" + hex.EncodeToString(names[:sha256.Size])))
			}
		}
		if len(rows) < page {
			return nil
		}
	}
}

type needs struct {
	row   int64
	turn  turnstone.TurnID
	names []byte
}

// insertBase notes that a session lies on the tree of a template, unless ref is empty.
func insertBase(ctx context.Context, tx *txn, s turnstone.SessionID,
	ref turnstone.TreeRef) error {
	if ref.Root == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO bases (session, root, hash) VALUES (?,?,?) "+
		"ON CONFLICT DO NOTHING",
		s, ref.Root, ref.Hash)
	return tx.fault("needs", string(s), err)
}

// A SessionBase is the tree of a template on which a turn of a sealed session began.
type SessionBase struct {
	Session turnstone.SessionID
	Tree    turnstone.TreeRef
}

// Bases returns the bases of all sealed sessions.
func (db *DB) Bases(ctx context.Context) ([]SessionBase, error) {
	return query(ctx, db.sql, "needs", func(rows *sql.Rows) (b SessionBase, err error) {
		return b, rows.Scan(&b.Session, &b.Tree.Root, &b.Tree.Hash)
	}, "SELECT session, root, hash FROM bases ORDER BY session, root")
}

// Domains returns the domains of all sessions.
func (db *DB) Domains(ctx context.Context) (map[turnstone.DomainID][]turnstone.SessionID, error) {
	all, err := sessions(ctx, db.sql, "WHERE domain <> '' ORDER BY id")
	if err != nil {
		return nil, err
	}
	in := map[turnstone.DomainID][]turnstone.SessionID{}
	for _, s := range all {
		in[s.Domain] = append(in[s.Domain], s.ID)
	}
	return in, nil
}

// MoveTo makes a session that is not sealed one of the domain d, whose objects needs names have to
// be durable, on the trees of templates in bases. all are its turns. If they have changed, or one of
// them runs or has a checkpoint, the error is of kind Unavailable, and nothing changes.
func (db *DB) MoveTo(ctx context.Context, id turnstone.SessionID, d turnstone.DomainID,
	all []turnstone.Turn, needs []turnstone.Digest, bases []turnstone.TreeRef) error {
	stored := map[turnstone.TurnID]turnstone.Turn{}
	for _, t := range all {
		t.Domain = d
		sealed, err := db.sealed(ctx, t)
		if err != nil {
			return err
		}
		stored[t.ID] = sealed
	}
	return db.write(ctx, func(tx *txn) error {
		if err := db.announces(ctx, tx); err != nil {
			return err
		}
		now, err := turns(ctx, tx, "WHERE session = ?", id)
		if err != nil {
			return err
		}
		if err := noCheckpoint(ctx, tx, id); err != nil {
			return err
		}
		changed := turnstone.Errorf("session.seal", turnstone.KindUnavailable, string(id),
			"the session has changed, or a turn of it runs").WithHint("try again")
		if len(now) != len(all) {
			return changed
		}
		for _, t := range now {
			s, known := stored[t.ID]
			if !known || t.Domain != "" || t.Status == turnstone.TurnRunning ||
				s.Record != t.Record || s.Envelope != t.Envelope {
				return changed
			}
			if _, err := tx.ExecContext(ctx, "UPDATE turns SET title = ?, state = ? WHERE id = ?",
				s.Title, s.State, t.ID); err != nil {
				return db.fault("seal", string(id), err)
			}
		}
		if _, err := tx.ExecContext(ctx, "UPDATE sessions SET domain = ? WHERE id = ?", d,
			id); err != nil {
			return db.fault("seal", string(id), err)
		}
		for _, ref := range bases {
			if err := insertBase(ctx, tx, id, ref); err != nil {
				return err
			}
		}
		return insertNeeds(ctx, tx, id, "", needs)
	})
}

// noCheckpoint rejects a session with a checkpoint, which is not sealed: it would stay in the clear,
// and its turn would store its end where no session of a domain is looked for.
func noCheckpoint(ctx context.Context, q querier, id turnstone.SessionID) error {
	all, err := checkpoints(ctx, q, "WHERE turn IN (SELECT id FROM turns WHERE session = ?) LIMIT 1", id)
	if err != nil || len(all) == 0 {
		return err
	}
	return turnstone.Errorf("session.seal", turnstone.KindUnavailable, string(id),
		"the checkpoint of an interrupted turn cannot be sealed").
		WithHint("end the turn first: turn resume " + string(all[0].Turn))
}

// Erase is Remove that also overwrites what the database has of the session, except its entries in
// the log of heads.
func (db *DB) Erase(ctx context.Context, id turnstone.SessionID) error {
	return db.erase(ctx, db.sql, func() error { return db.Remove(ctx, id) })
}

// Scrub rewrites the database without the parts of its file that are not used: they have older
// versions of rows, such as titles of sessions that are sealed now.
func (db *DB) Scrub(ctx context.Context) error { return db.scrub(ctx, db.sql) }
