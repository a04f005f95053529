package keyring_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestCollect: only keys of old domains are destroyed that nothing uses, and that no ring has made
// and not settled. What killed writers left is removed.
func TestCollect(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	one, two := open(t, dir), open(t, dir)
	var ids []keyring.ID
	for range 4 {
		id, _ := create(t, one)
		ids = append(ids, id)
	}
	used, claimed, damaged, unused := ids[0], ids[1], ids[2], ids[3]
	for _, id := range []keyring.ID{used, damaged, unused} {
		one.Settle(id)
	}
	if err := os.WriteFile(dir.Path(keyring.Folder, damaged.String()+".json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	litter := dir.Path(keyring.Folder, "."+unused.String()+".json.123")
	if err := os.WriteFile(litter, []byte("wrapped"), 0o600); err != nil {
		t.Fatal(err)
	}
	collect := func(before time.Time, dry bool, want ...keyring.ID) {
		t.Helper()
		gone, err := two.Table().Collect(t.Context(), before, dry,
			func(_ context.Context, id keyring.ID) (bool, error) { return id == used, nil })
		if err != nil || !slices.Equal(gone, want) {
			t.Errorf("%v, want %v; %v", gone, want, err)
		}
	}
	later := time.Now().Add(time.Hour)
	collect(time.Now().Add(-time.Hour), false)
	collect(later, true, unused)
	collect(later, false, unused)
	if _, err := os.Stat(litter); err == nil {
		t.Error("the file of a killed writer is left")
	}
	for id, there := range map[keyring.ID]bool{used: true, claimed: true, damaged: true, unused: false} {
		if two.Table().Has(id) != there {
			t.Errorf("%v: %v", id, !there)
		}
	}
	one.Close() // as the end of its process does
	collect(later, false, claimed)
}
