package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestBundle compares the bundle in the repository with a fresh one.
func TestBundle(t *testing.T) {
	if _, err := os.Stat("../preact/src"); err != nil {
		t.Skip("Preact's source is missing: scripts/vendor-preact fetches it")
	}
	files, err := build("..")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Errorf("%d files", len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../dist", name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("dist/%s is not what its sources give (%v): go run ./internal/ui/web/bundle "+
				"internal/ui/web", name, err)
		}
	}
}
