package template

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// TestRealBash checks that Debian has a bash that needs no library, and that it is downloaded once.
func TestRealBash(t *testing.T) {
	if testing.Short() {
		t.Skip("asks Debian's mirror")
	}
	s := NewStore(t.TempDir())
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.ociPath(), 0o700); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	b, err := s.staticBash(t.Context(), os.Stderr, func(what string) { t.Log(what) })
	if err != nil {
		t.Fatalf("%v; %s", err, turnstone.HintOf(err))
	}
	t.Logf("%d bytes after %s", len(b), time.Since(start))
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it needs a loader")
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel() // no further request is needed
	again, err := s.staticBash(canceled, os.Stderr, func(what string) { t.Error(what) })
	if err != nil || !bytes.Equal(again, b) {
		t.Errorf("the second time: %v", err)
	}
}
