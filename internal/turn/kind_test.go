package turn

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
)

// TestTurnKeepsKind checks that an interrupted turn has the kind of the error that interrupted it.
func TestTurnKeepsKind(t *testing.T) {
	for _, kind := range []turnstone.Kind{turnstone.KindNotFound, turnstone.KindUnavailable,
		turnstone.KindCanceled, turnstone.KindDead} {
		r := &run{host: &host.Host{}, plan: &plan.Plan{}, doc: parse(t, "# A turn\n\ntext\n"), obs: &observer{},
			clock: provision.NewStopwatch(), folder: &repo.TurnFolder{}}
		r.openSteps()
		r.fail(turnstone.NewError("executor.get", kind, "/nofile", nil))
		if turn := r.report(committed{}); turn.Kind != kind ||
			turn.Result != turnstone.ResultError {
			t.Errorf("%s: %+v", kind, turn)
		}
	}
}
