package host

import (
	"os"
	"testing"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestLimitsReachTheReaders checks that the host bounds the data that is read from a guest,
// whatever disk was requested.
func TestLimitsReachTheReaders(t *testing.T) {
	x := New(&statedir.Dir{Root: t.TempDir()}, Options{}, nil)
	if err := os.WriteFile(x.Dir.Path(config.File),
		[]byte("[limits]\nentries = 1000\nfile_size = \"1GiB\""), 0o600); err != nil {
		t.Fatal(err)
	}
	facts, err := x.Facts()
	if err != nil {
		t.Fatal(err)
	}
	a := &plan.Authority{Request: plan.Request{Document: &document.Document{}}, Host: facts}
	p, err := plan.Make(a, "", "/workspace")
	if err != nil {
		t.Fatal(err)
	}
	if b := x.Bounds(p, 1); b.Limits.Entries != 1000 || b.Limits.FileSize != 1<<30 {
		t.Errorf("%+v", b)
	}
}
