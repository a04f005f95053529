package turn

import (
	"context"

	"turnstone.dev/turnstone/internal/receipt"
)

// beginNetwork leaves out of account what happened before the first step: a machine
// that stays has had other turns.
func (r *run) beginNetwork(ctx context.Context, s *Sandbox) {
	if !r.shape.Network {
		return
	}
	if f, ok := s.TakeNetwork(ctx); ok {
		r.steps.BeginNetwork(f.Totals)
	}
}

// noteNetwork puts what a step did on the network into its result.
func (r *run) noteNetwork(ctx context.Context, s *Sandbox, step *receipt.Step) {
	if !r.shape.Network {
		return
	}
	if f, ok := s.TakeNetwork(ctx); ok {
		step.Network(f)
	}
}
