package session

import (
	"os"
	"testing"

	"turnstone.dev/turnstone"
)

// TestForsake: the lease that a killed process left is removed, and that of a turn that runs is not.
func TestForsake(t *testing.T) {
	db := open(t, t.TempDir())
	running, err := db.Start(t.Context(), StartTurn{Kind: turnstone.TurnKindRun})
	if err != nil {
		t.Fatal(err)
	}
	left := turnstone.NewTurnID() // as after a kill between the lease and the turn's row
	if err := os.WriteFile(db.leasePath(left), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []turnstone.TurnID{running.ID, left, left, turnstone.NewTurnID(), "../context.db"} {
		if err := db.Forsake(id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	entries, err := os.ReadDir(db.leases)
	if err != nil || len(entries) != 1 || entries[0].Name() != string(running.ID) {
		t.Errorf("leases: %v, %v", entries, err)
	}
}
