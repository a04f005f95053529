package machine

import (
	"path/filepath"
	"testing"
	"turnstone.dev/turnstone/internal/guest/agent"
)

// TestExercise checks that the warm-up of an agent works; a failure at a boot would go unnoticed.
func TestExercise(t *testing.T) {
	dir := t.TempDir()
	tracing := agent.NewTracing()
	defer tracing.Close()
	if err := exercise(agent.Options{RunDir: filepath.Join(dir, "run"),
		Cwd: filepath.Join(dir, "work"), Tracing: tracing}); err != nil {
		t.Error(err)
	}
}
