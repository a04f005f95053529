package telemetry

import (
	"context"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/node/turns"
)

// A resuming executor can resume turns.
type resuming struct {
	turns.Executor
	turns.Resumer
}

func (resuming) ResumeTurn(context.Context, executor.ResumeTurnRequest, executor.Observer) (
	*turnstone.TurnReport, error) {
	return &turnstone.TurnReport{Result: turnstone.ResultPassed}, nil
}

// TestResumes: what measures turns resumes them if its executor does, and counts them.
func TestResumes(t *testing.T) {
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0"})
	if _, ok := tel.Turns("acme", struct{ turns.Executor }{}).(turns.Resumer); ok {
		t.Error("an executor that resumes nothing became one that does")
	}
	r, ok := tel.Turns("acme", resuming{}).(turns.Resumer)
	if !ok {
		t.Fatal("it resumes nothing")
	}
	if _, err := r.ResumeTurn(t.Context(), executor.ResumeTurnRequest{}, nil); err != nil {
		t.Fatal(err)
	}
}
