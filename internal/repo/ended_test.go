package repo_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
)

// TestEndedLeavesNoLease: whoever asks what became of a turn whose process was killed leaves no lease of
// it, whether the turn was stored or not.
func TestEndedLeavesNoLease(t *testing.T) {
	p := repotest.New(t)
	stored := p.Turn(p.Session("s"), "main", files(nil)...)
	if err := os.MkdirAll(p.Repo.Dir.Path("leases"), 0o700); err != nil {
		t.Fatal(err)
	}
	for id, kind := range map[turnstone.TurnID]turnstone.Kind{stored.ID: "",
		turnstone.NewTurnID(): turnstone.KindNotFound} {
		lease := p.Repo.Dir.Path("leases", string(id))
		if err := os.WriteFile(lease, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := p.Repo.Ended(t.Context(), id)
		if kind == "" && err != nil || kind != "" && turnstone.KindOf(err) != kind {
			t.Errorf("%s: %v", id, err)
		}
		if _, err := os.Stat(lease); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: its lease stays: %v", id, err)
		}
	}
}

// TestEndedWithoutRecord: a turn whose record is missing from the store is not one that never began.
func TestEndedWithoutRecord(t *testing.T) {
	p := repotest.New(t)
	stored := p.Turn(p.Session("s"), "main", files(nil)...)
	for _, part := range []string{"blobs", "index"} {
		if err := os.RemoveAll(p.Repo.Dir.Path("store", part)); err != nil {
			t.Fatal(err)
		}
	}
	again := repotest.Open(p.Repo.Dir)
	t.Cleanup(func() { _ = again.Close() })
	_, _, err := again.Ended(t.Context(), stored.ID)
	if turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Fatalf("%s: %v", turnstone.KindOf(err), err)
	}
}
