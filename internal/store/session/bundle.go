package session

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// maxNumber bounds a turn's number in imported data.
const maxNumber = 1 << 31

var sessionID = lazyregexp.New(`^s_[0-9a-v]{18}$`)

// CheckGraph reports the first fault of a graph from another machine: the error is of kind Invalid.
// All turns must be done, parents must precede their turns, and every referenced turn must be in
// the graph.
func CheckGraph(g *turnstone.Graph) error {
	fail := func(format string, args ...any) error {
		return turnstone.Errorf("session.import", turnstone.KindInvalid, "the session",
			format, args...)
	}
	if !sessionID.MatchString(string(g.Session.ID)) {
		return fail("has the ID %q", g.Session.ID)
	}
	if g.Session.Name != "" {
		if err := CheckName("session", g.Session.Name); err != nil {
			return err
		}
	}
	numbers, used := map[turnstone.TurnID]int{}, map[int]bool{}
	for _, t := range g.Turns {
		if !validTurnID(t.ID) || numbers[t.ID] != 0 || t.Number < 1 ||
			t.Number >= maxNumber || used[t.Number] {
			return fail("has a turn %q with the impossible number %d", t.ID, t.Number)
		}
		numbers[t.ID], used[t.Number] = t.Number, true
	}
	for _, t := range g.Turns {
		if err := checkTurn(g, t, numbers); err != nil {
			return fail("turn %d: %w", t.Number, err)
		}
	}
	names := map[string]bool{}
	for _, b := range g.Branches {
		if err := CheckName("branch", b.Name); err != nil {
			return err
		}
		if names[b.Name] || b.Session != g.Session.ID || b.Head != "" && numbers[b.Head] == 0 {
			return fail("has a branch %s that is a duplicate or has an unknown head", b.Name)
		}
		names[b.Name] = true
	}
	for _, t := range g.Tags {
		if err := CheckName("tag", t.Name); err != nil {
			return err
		}
		if names[t.Name] || t.Session != g.Session.ID || numbers[t.Turn] == 0 {
			return fail("has a tag %s that is a duplicate or has an unknown turn", t.Name)
		}
		names[t.Name] = true
	}
	return nil
}

func checkTurn(g *turnstone.Graph, t turnstone.Turn, numbers map[turnstone.TurnID]int) error {
	if t.Session != g.Session.ID {
		return errors.New("is of another session")
	}
	if err := CheckName("branch", t.Branch); err != nil {
		return err
	}
	if t.Status != turnstone.TurnDone {
		return errors.New("is not done")
	}
	if !slices.Contains([]turnstone.Result{turnstone.ResultPassed, turnstone.ResultFailed,
		turnstone.ResultTimedOut, turnstone.ResultError}, t.Result) {
		return fmt.Errorf("has the result %q", t.Result)
	}
	if t.Title != cut(t.Title, maxTitle) || string(t.Kind) != cut(string(t.Kind), 20) {
		return errors.New("has an invalid title or kind")
	}
	for _, d := range []turnstone.Digest{t.Record, t.State, t.Statement, t.Envelope} {
		if d == "" {
			continue
		}
		if _, err := turnstone.ParseDigest(string(d)); err != nil {
			return err
		}
	}
	if len(t.Parents) > 2 || t.State != "" && t.Record == "" {
		return errors.New("has too many parents, or a state without a record")
	}
	if (t.Statement == "") != (t.Envelope == "") || t.Statement != "" && t.Record == "" {
		return errors.New("has a statement without an envelope or a record, or the reverse")
	}
	for _, p := range t.Parents {
		if numbers[p] == 0 || numbers[p] >= t.Number {
			return fmt.Errorf("has the parent %q, which does not precede it", p)
		}
	}
	return nil
}

// Import adds a session from another machine with its IDs in a single transaction, as a session of
// the domain g.Session.Domain. A session with this ID that already has all of g's turns is left
// unchanged, and fresh is false. A session with other turns, and another session with the same
// name, are errors of kind Invalid. The objects that g's turns refer to must already be durable.
//
// A session whose log of heads lacks entries that are known here, such as those of a session that
// was removed, is an error of kind Integrity, unless h accepts it.
func (db *DB) Import(ctx context.Context, g *turnstone.Graph, h ImportHistory) (fresh bool,
	err error) {
	if err := CheckGraph(g); err != nil {
		return false, err
	}
	if has, err := hasGraph(ctx, db.sql, g); err != nil || has {
		return false, err
	}
	stored := slices.Clone(g.Turns)
	for i := range stored {
		stored[i].Domain, stored[i].Locked = g.Session.Domain, false
		if stored[i], err = db.sealed(ctx, stored[i]); err != nil {
			return false, err
		}
	}
	err = db.write(ctx, func(tx *txn) error {
		fresh = false
		if has, err := hasGraph(ctx, tx, g); err != nil || has {
			return err
		}
		fresh = true
		if err := db.announces(ctx, tx); err != nil {
			return err
		}
		if err := importHeads(ctx, tx, g.Session.ID, h); err != nil {
			return err
		}
		return db.importNew(ctx, tx, g, stored, h.Needs)
	})
	return fresh && err == nil, err
}

// Has reports whether Import would change nothing, or returns Import's error.
func (db *DB) Has(ctx context.Context, g *turnstone.Graph) (bool, error) {
	return hasGraph(ctx, db.sql, g)
}

func hasGraph(ctx context.Context, q querier, g *turnstone.Graph) (bool, error) {
	if s, err := oneSession(ctx, q, string(g.Session.ID), "id = ?",
		g.Session.ID); turnstone.KindOf(err) != turnstone.KindNotFound {
		if err != nil {
			return false, err
		}
		if err := notHidden(ctx, s); err != nil {
			return false, err
		}
		return true, sameTurns(ctx, q, g)
	}
	if g.Session.Name == "" {
		return false, nil
	}
	if _, err := find(ctx, q, g.Session.Name); turnstone.KindOf(err) != turnstone.KindNotFound {
		if err != nil {
			return false, err
		}
		return false, taken("session", g.Session.Name, "choose another name here with --as NAME")
	}
	return false, nil
}

// sameTurns reports a turn of g that the local session lacks or has in another form.
func sameTurns(ctx context.Context, q querier, g *turnstone.Graph) error {
	type kept struct{ record, statement turnstone.Digest }
	have := map[turnstone.TurnID]kept{}
	ts, err := turns(ctx, q, "WHERE session = ?", g.Session.ID)
	if err != nil {
		return err
	}
	for _, t := range ts {
		have[t.ID] = kept{t.Record, t.Statement}
	}
	for _, t := range g.Turns {
		if k, ok := have[t.ID]; !ok || k != (kept{t.Record, t.Statement}) {
			return turnstone.Errorf("session.import", turnstone.KindInvalid, string(g.Session.ID),
				"the local session has this ID and lacks turn %d (%s) of the file", t.Number, t.ID).
				WithHint("remove the local session first: turn session rm " + string(g.Session.ID))
		}
	}
	return nil
}

// importNew adds the session of g. all are its turns, as they are stored.
func (db *DB) importNew(ctx context.Context, tx *txn, g *turnstone.Graph, all []turnstone.Turn,
	needs []turnstone.Digest) error {
	next := 1
	for _, t := range g.Turns {
		next = max(next, t.Number+1)
		if _, err := turn(ctx, tx, t.ID); turnstone.KindOf(err) != turnstone.KindNotFound {
			if err != nil {
				return err
			}
			return turnstone.Errorf("session.import", turnstone.KindInvalid, string(t.ID),
				"is a turn of another session here")
		}
	}
	s := g.Session
	if err := made(ctx, s); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx,
		"INSERT INTO sessions (id, name, created, next, domain) VALUES (?, ?, ?, ?, ?)",
		s.ID, sql.NullString{String: s.Name, Valid: s.Name != ""}, unixNano(s.Created), next, s.Domain)
	if err != nil {
		return db.fault("import", string(s.ID), err)
	}
	for _, t := range all {
		if err := insertTurn(ctx, tx, t); err != nil {
			return err
		}
	}
	// The turns came together: none has a list of its own.
	if err := insertNeeds(ctx, tx, s.ID, "", needs); err != nil {
		return err
	}
	hasMain := false
	for _, b := range g.Branches {
		hasMain = hasMain || b.Name == Main
		if err := insertBranch(ctx, tx, b); err != nil {
			return err
		}
	}
	if !hasMain {
		if err := insertBranch(ctx, tx, turnstone.Branch{Session: s.ID, Name: Main,
			Created: s.Created}); err != nil {
			return err
		}
	}
	for _, t := range g.Tags {
		if err := insertTag(ctx, tx, t); err != nil {
			return err
		}
	}
	return nil
}
