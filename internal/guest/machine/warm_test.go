package machine

import (
	"path/filepath"
	"testing"
	"turnstone.dev/turnstone/internal/guest/agent"
)

// TestExercise: what warms an agent up works; at a boot nobody would see that it
// does not.
func TestExercise(t *testing.T) {
	dir := t.TempDir()
	tracing := agent.NewTracing()
	defer tracing.Close()
	if err := exercise(agent.Options{RunDir: filepath.Join(dir, "run"), Cwd: filepath.Join(dir, "work"), Tracing: tracing}); err != nil {
		t.Error(err)
	}
}
