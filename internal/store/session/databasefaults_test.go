package session

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// TestDatabaseFull: a database whose disk is full refuses a turn's end as exhausted, the branch stays
// where it was, and the end is stored when there is room. A failover to a standby without the newest
// transactions takes a turn back: its session is as it was before, and the next turn gets its number.
func TestDatabaseFull(t *testing.T) {
	s := pgtest.New(t, "fsync=off")
	ctx := t.Context()
	db := open(t, s.URL+"#turn")
	session := must[turnstone.Session](t)(db.Create(ctx, "s"))
	base := grow(t, db, session, Main)
	turn := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: session.ID, Kind: "run"}))
	exec := func(text string) {
		t.Helper()
		if _, err := db.sql.ExecContext(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	// as the server refuses a page for which there is no room (errcode 53100, disk_full)
	exec(`CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
		END $$`)
	exec("CREATE TRIGGER full_disk BEFORE UPDATE ON turns FOR EACH ROW EXECUTE FUNCTION no_room()")
	end := Finish{Turn: turn.ID, Result: turnstone.ResultPassed, Record: digest("r"), State: digest("s"),
		MoveBranch: true, ExpectedHead: &base.ID}
	_, _, err := db.Finish(ctx, end)
	wantKind(t, "an end without room", err, turnstone.KindExhausted)
	if turnstone.HintOf(err) == "" {
		t.Error("no hint")
	}
	head := func(db *DB) turnstone.TurnID {
		return must[turnstone.Branch](t)(db.Branch(ctx, session.ID, Main)).Head
	}
	if head(db) != base.ID {
		t.Error("the branch has moved")
	}
	exec("DROP TRIGGER full_disk ON turns")
	if _, _, err := db.Finish(ctx, end); err != nil || head(db) != turn.ID {
		t.Errorf("with room: %v", err)
	}

	goBack, err := s.Remember()
	if err != nil {
		t.Fatal(err)
	}
	db = open(t, s.URL+"#turn")
	lost := grow(t, db, session, Main, turn.ID)
	if err := goBack(); err != nil {
		t.Fatal(err)
	}
	db = open(t, s.URL+"#turn")
	if _, err := db.Turn(ctx, lost.ID); turnstone.KindOf(err) != turnstone.KindNotFound ||
		head(db) != turn.ID {
		t.Errorf("after the loss of a turn: %v, the branch is at %s", err, head(db))
	}
	if next := grow(t, db, session, Main, turn.ID); next.Number != lost.Number || next.ID == lost.ID {
		t.Errorf("%+v", next)
	}
}
