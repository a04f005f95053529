package turn

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox/collect"
)

// facts reads what a plan has to know of this host.
func (x *Runner) facts() (plan.Host, error) {
	c, err := x.config()
	if err != nil {
		return plan.Host{}, err
	}
	limits := c.Limits.For(config.HostOf(x.home.Root))
	room := func() error { return x.space.Check(limits.FreeSpace, 1) }
	return plan.Host{Config: c, Limits: limits, Room: room}, nil
}

// bounds limit what is read of the sandbox of p.
func (x *Runner) bounds(p *plan.Plan) collect.Bounds {
	return collect.Bounds{Dir: x.home, Limits: p.Host.Limits, Room: p.Host.Room}
}

// salvage keeps what the steps did until the host's disk was nearly full, if there is room
// for it, and returns why the turn ended.
func (r *run) salvage(ctx context.Context, s *Sandbox, low error) error {
	half := r.x.bounds(r.plan)
	half.Room = func() error { return r.x.space.Check(half.Limits.FreeSpace, 2) } // the rest is for others
	left, err := r.collect(ctx, s, half)
	r.clock.lap("collect")
	if err != nil {
		return turnstone.Errorf("executor.space", turnstone.KindExhausted, "",
			"%w; what the turn changed is not kept: %w", low, err).WithHint(turnstone.HintOf(low))
	}
	r.collected = left
	return low
}
