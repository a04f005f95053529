package main

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
)

// TestAdmission: the hint for a turn that the user may not read names the command that admits the user, or that no server
// is selected.
func TestAdmission(t *testing.T) {
	for host, want := range map[string]string{"work": "turn session allow s_1 KEY", "": "no server is selected"} {
		a := &cli.App{Env: cli.Settings{Options: executor.Options{Dir: t.TempDir()}, Host: host}}
		if got := admission(a, "s_1"); !strings.Contains(got, want) {
			t.Errorf("%q: %q, not %q", host, got, want)
		}
	}
}
