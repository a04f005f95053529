package plan

import (
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
)

// A Host contains the facts about a host that a plan needs, read once.
type Host struct {
	config.Config               // the content of the configuration file
	Limits        config.Limits // the configuration's limits, with this machine's defaults
	// returns an error if the host's disk is nearly full; nil: not checked
	Room func() error
	// Tier returns the tier of a deterministic turn that names none, and why that is not seeded;
	// nil: such a turn is of the tier seeded.
	Tier func() (tier turnstone.Tier, without, err error)
}

// room returns an error if the host's disk is nearly full.
func (h Host) room() error {
	if h.Room == nil {
		return nil
	}
	return h.Room()
}

// fitLimits applies the host's limits to p. Default values above a limit are reduced.
func (p *Plan) fitLimits() error {
	l, def := p.Host.Limits, turnstone.DefaultShape()
	if l.CPUs == 0 { // a plan without a host
		return nil
	}
	if !p.Timed {
		p.Timeout = min(p.Timeout, time.Duration(l.Timeout))
	}
	if p.Shape.CPUs == def.CPUs && p.Wants.CPUs == 0 {
		p.Shape.CPUs = min(p.Shape.CPUs, l.CPUs)
	}
	if p.Shape.Memory == def.Memory && p.Wants.Memory == 0 {
		p.Shape.Memory = min(p.Shape.Memory, turnstone.Bytes(l.Memory))
	}
	if p.Shape.Disk == def.Disk && p.Wants.Disk == 0 {
		p.Shape.Disk = min(p.Shape.Disk, turnstone.Bytes(l.Disk))
	}
	switch {
	case p.Shape.CPUs > l.CPUs:
		return beyond("cpus", p.Shape.CPUs, l.CPUs)
	case p.Shape.Memory > turnstone.Bytes(l.Memory):
		return beyond("memory", p.Shape.Memory.Human(), turnstone.Bytes(l.Memory).Human())
	case p.Shape.Disk > turnstone.Bytes(l.Disk):
		return beyond("disk", p.Shape.Disk.Human(), turnstone.Bytes(l.Disk).Human())
	case p.Timeout > time.Duration(l.Timeout):
		return beyond("timeout", p.Timeout, time.Duration(l.Timeout))
	}
	if d := p.Determinism; d != nil && d.Tier == turnstone.TierStrict {
		if err := p.fitInMemory(); err != nil {
			return err
		}
	}
	// The operator may have raised the limit above the machine's memory.
	if has := config.HostOf("").Memory; has > 0 && p.Shape.Memory > has {
		return invalid("memory", "%s is more than the %s that this machine has",
			p.Shape.Memory.Human(), has.Human())
	}
	return nil
}

// fitInMemory rejects a machine of the tier strict, whose disk is in the host's memory, if both
// together exceed the limit. A default disk is not reduced: programs see its size, and the turn would
// differ from host to host. Layers and scripts are added when their sizes are known.
func (p *Plan) fitInMemory() error {
	both, limit := p.Shape.Memory+p.Shape.Disk, turnstone.Bytes(p.Host.Limits.Memory)
	if both <= limit {
		return nil
	}
	return turnstone.Errorf(op, turnstone.KindInvalid, "memory and disk", "%s and %s are more than "+
		"the %s of memory that this host gives a sandbox; the disk of a machine of the tier "+
		"strict is in memory", p.Shape.Memory.Human(), p.Shape.Disk.Human(), limit.Human()).
		WithHint(fmt.Sprintf("ask for less with memory: or disk:, or raise memory in [limits] of %s "+
			"in the state directory", config.File))
}

func beyond(key string, asked, limit any) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, key,
		"%v is more than the %v that this host gives a sandbox", asked, limit).
		WithHint(fmt.Sprintf("ask for less, or raise %s in [limits] of %s in the state directory",
			key, config.File))
}
