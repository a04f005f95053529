package firecracker

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestSweepGroups checks that leftovers of a killed machine are removed, and that used, young and
// foreign groups stay.
func TestSweepGroups(t *testing.T) {
	parent := t.TempDir()
	for _, name := range []string{"sb-left", "sb-used/process", "other"} {
		check(t, os.MkdirAll(filepath.Join(parent, name), 0o755))
	}
	sweepGroups(parent, time.Now())
	if all, _ := os.ReadDir(parent); len(all) != 3 {
		t.Errorf("young groups are gone: %v", all)
	}
	sweepGroups(parent, time.Now().Add(2*groupAge))
	all, err := os.ReadDir(parent)
	check(t, err)
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	if want := []string{"other", "sb-used"}; !slices.Equal(names, want) {
		t.Errorf("left: %q, want %q", names, want)
	}
}
