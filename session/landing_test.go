package session

import (
	"testing"

	"turnstone.dev/turnstone"
)

// What Landing says is what Finish does.
func TestLanding(t *testing.T) {
	db := open(t)
	s, err := db.Create(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	var started []Turn
	for range 3 {
		tn, err := db.Start(t.Context(), StartTurn{Session: s.ID})
		if err != nil {
			t.Fatal(err)
		}
		started = append(started, tn)
	}
	for i, tn := range started {
		want, diverged, err := db.Landing(t.Context(), tn.ID, nil)
		if err != nil || diverged != (i > 0) {
			t.Fatalf("%s %v %v", want, diverged, err)
		}
		got, gotDiverged, err := db.Finish(t.Context(), Finish{Turn: tn.ID, Result: turnstone.Passed, MoveBranch: true})
		if err != nil || got != want || gotDiverged != diverged {
			t.Errorf("%s %v, foretold %s %v: %v", got, gotDiverged, want, diverged, err)
		}
	}
}

func TestAbandon(t *testing.T) {
	db := open(t)
	tn, err := db.Start(t.Context(), StartTurn{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Abandon(t.Context(), tn.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Turn(t.Context(), tn.ID); turnstone.KindOf(err) != turnstone.NotFound {
		t.Error(err)
	}
	if all, err := db.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
	done, err := db.Start(t.Context(), StartTurn{})
	if err == nil {
		_, _, err = db.Finish(t.Context(), Finish{Turn: done.ID, Result: turnstone.Passed})
	}
	if err == nil {
		err = db.Abandon(t.Context(), done.ID)
	}
	if _, terr := db.Turn(t.Context(), done.ID); err != nil || terr != nil {
		t.Errorf("a turn that is done was forgotten: %v %v", err, terr)
	}
}
