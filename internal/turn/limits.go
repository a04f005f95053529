package turn

import (
	"context"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/statedir"
)

// admit gives p the limits of the host, and refuses what is beyond them, and anything at
// all while the host's disk is nearly full. Nothing was started.
func (x *Host) admit(p *plan, host config.Config) error {
	p.limits = x.limits(host)
	if err := p.fitLimits(); err != nil {
		return err
	}
	p.room = x.roomFor(p.limits)
	return p.room()
}

// limits are those of the host with this configuration.
func (x *Host) limits(host config.Config) config.Limits {
	return host.Limits.For(config.HostOf(x.home.Root))
}

// roomFor returns what tells whether the host's disk is nearly full.
func (x *Host) roomFor(l config.Limits) func() error {
	return func() error { return x.space.Check(l.FreeSpace, 1) }
}

// fitLimits holds p to the host's limits. What nobody asked for is made smaller.
func (p *plan) fitLimits() error {
	l, def := p.limits, turnstone.DefaultShape()
	if l.CPUs == 0 { // not admitted yet
		return nil
	}
	if !p.timed {
		p.timeout = min(p.timeout, time.Duration(l.Timeout))
	}
	if p.shape.CPUs == def.CPUs && p.wants.cpus == 0 {
		p.shape.CPUs = min(p.shape.CPUs, l.CPUs)
	}
	if p.shape.Memory == def.Memory && p.wants.memory == 0 {
		p.shape.Memory = min(p.shape.Memory, turnstone.Bytes(l.Memory))
	}
	if p.shape.Disk == def.Disk && p.wants.disk == 0 {
		p.shape.Disk = min(p.shape.Disk, turnstone.Bytes(l.Disk))
	}
	switch {
	case p.shape.CPUs > l.CPUs:
		return beyond("cpus", p.shape.CPUs, l.CPUs)
	case p.shape.Memory > turnstone.Bytes(l.Memory):
		return beyond("memory", p.shape.Memory.Human(), turnstone.Bytes(l.Memory).Human())
	case p.shape.Disk > turnstone.Bytes(l.Disk):
		return beyond("disk", p.shape.Disk.Human(), turnstone.Bytes(l.Disk).Human())
	case p.timeout > time.Duration(l.Timeout):
		return beyond("timeout", p.timeout, time.Duration(l.Timeout))
	}
	// The operator may have raised the limit beyond what there is.
	if has := config.HostOf("").Memory; has > 0 && p.shape.Memory > has {
		return invalid("memory", "%s is more than the %s that this machine has", p.shape.Memory.Human(), has.Human())
	}
	return nil
}

func beyond(key string, asked, limit any) error {
	return turnstone.Errorf("executor.plan", turnstone.KindInvalid, key,
		"%v is more than the %v that this host gives a sandbox", asked, limit).
		WithHint(fmt.Sprintf("ask for less, or raise %s in [limits] of %s in the state directory", key, config.File))
}

// bounds limit what is read of p's sandbox.
func (p *plan) bounds(dir *statedir.Dir) collect.Bounds {
	return collect.Bounds{Dir: dir, Limits: p.limits, Room: p.room}
}

// salvage keeps what the steps did until the host's disk was nearly full, if there is room
// for it, and returns why the turn ended.
func (r *run) salvage(ctx context.Context, s *Sandbox, low error) error {
	r.plan.room = func() error { return r.x.space.Check(r.plan.limits.FreeSpace, 2) } // the rest is for others
	left, err := r.collect(ctx, s)
	r.clock.lap("collect")
	if err != nil {
		return turnstone.Errorf("executor.space", turnstone.KindExhausted, "",
			"%w; what the turn changed is not kept: %w", low, err).WithHint(turnstone.HintOf(low))
	}
	r.collected = left
	return low
}
