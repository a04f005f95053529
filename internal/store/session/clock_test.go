package session

import (
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// TestClocksDiffer: a machine whose clock is days ahead, and one whose clock is behind, note the
// database's time, and neither deletes what is young.
func TestClocksDiffer(t *testing.T) {
	place := shared(t)
	ctx := t.Context()
	right := open(t, place)
	want := right.now()
	for _, off := range []time.Duration{240 * time.Hour, -240 * time.Hour} {
		wrong := open(t, place)
		c := wrong.dialect.(*postgres).clock
		c.steady = func() time.Time { return time.Now().Add(off) }
		if err := c.read(ctx, wrong.sql.DB); err != nil {
			t.Fatal(err)
		}
		s := must[turnstone.Session](t)(wrong.Create(ctx, ""))
		turn := must[turnstone.Turn](t)(wrong.Start(ctx, StartTurn{Session: s.ID, Kind: "run"}))
		finish(t, wrong, turn)
		for _, at := range []time.Time{s.Created, turn.Started, wrong.now()} {
			if d := at.Sub(want); d < 0 || d > time.Hour {
				t.Errorf("a machine that is off by %s notes %s, %s from the database's time", off, at, d)
			}
		}
		for _, db := range []*DB{right, wrong} {
			gone := must[Expired](t)(db.Prune(ctx, Rule{Anonymous: 24 * time.Hour,
				Unreachable: 24 * time.Hour}))
			if len(gone.Sessions)+len(gone.Turns) > 0 {
				t.Errorf("off by %s: %+v", off, gone)
			}
		}
	}
}
