package agent

import (
	"testing"

	"turnstone.dev/turnstone"
)

// TestFreezeOutsideOfAMachine checks that an agent outside of a machine never touches the disks of
// its host.
func TestFreezeOutsideOfAMachine(t *testing.T) {
	a, err := New(Options{RunDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	if _, err := a.shell.Freeze(t.Context(), nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("freeze: %v", err)
	}
	if err := a.shell.Thaw(t.Context(), nil); err != nil {
		t.Errorf("thaw of what is not frozen: %v", err)
	}
}
