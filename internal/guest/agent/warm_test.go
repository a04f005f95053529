package agent

import (
	"path/filepath"
	"testing"
)

// TestExercise: what warms an agent up works; at a boot nobody would see that it
// does not.
func TestExercise(t *testing.T) {
	dir := t.TempDir()
	tracing := NewTracing()
	defer tracing.Close()
	if err := exercise(Options{RunDir: filepath.Join(dir, "run"), Cwd: filepath.Join(dir, "work"), Tracing: tracing}); err != nil {
		t.Error(err)
	}
}
