package replay

import (
	"slices"
	"testing"

	"turnstone.dev/turnstone"
)

// TestDifferences checks what a replay reports of a step.
func TestDifferences(t *testing.T) {
	code := func(n int) *int { return &n }
	content := func(d turnstone.Digest) *turnstone.Content { return &turnstone.Content{Digest: d} }
	was := turnstone.RecordStep{Status: turnstone.StepPassed, ExitCode: code(0),
		Stdout: content("sha256:1")}
	for name, c := range map[string]struct {
		now  turnstone.RecordStep
		want []string
	}{
		"nothing": {turnstone.RecordStep{Name: "renamed", Status: turnstone.StepPassed,
			ExitCode: code(0), Stdout: &turnstone.Content{Digest: "sha256:1", Size: 1}}, nil},
		"all": {turnstone.RecordStep{Status: turnstone.StepTimeout, Stderr: content("sha256:2")},
			[]string{"passed before, timeout now", "exit code 0 before, none now",
				"standard output", "standard error"}},
		"the exit code": {turnstone.RecordStep{Status: turnstone.StepPassed, ExitCode: code(3),
			Stdout: content("sha256:1")}, []string{"exit code 0 before, 3 now"}},
	} {
		if got := differences(was, c.now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	got := envDifferences([]string{"A=1", "B=1", "C=x=y", "D=1"},
		[]string{"B=2", "C=x=y", "A=1", "E="})
	if want := []string{"B", "D", "E"}; !slices.Equal(got, want) {
		t.Errorf("of the environment %q, want %q", got, want)
	}
}
