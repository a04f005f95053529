package driver

import (
	"context"

	"turnstone.dev/turnstone"
)

// Tier returns the tier of a deterministic turn that names none: seeded, or strict where this host
// has no machines of the tier seeded; without is then the reason. An error of kind Unavailable says
// why this host has neither. Tier starts at most an empty sandbox of gVisor, whose result is stored.
func (c *Chooser) Tier(ctx context.Context) (tier turnstone.Tier, without, err error) {
	if without = c.HasTier(ctx, Auto, turnstone.TierSeeded); without == nil {
		return turnstone.TierSeeded, nil, nil
	}
	neither := c.HasTier(ctx, Auto, turnstone.TierStrict)
	switch {
	case neither == nil:
		return turnstone.TierStrict, without, nil
	case ctx.Err() != nil:
		return "", nil, neither
	}
	return "", nil, turnstone.Errorf("substrates.choose", turnstone.KindUnavailable,
		"deterministic turns", "this host has no tier for them: seeded needs gVisor: %w; "+
			"strict needs QEMU: %w", without, neither).WithHint("run `turn doctor`")
}

// HasTier returns why this host has no deterministic machines of tier on the substrate called name;
// nil: it has.
func (c *Chooser) HasTier(ctx context.Context, name string, tier turnstone.Tier) error {
	return c.Decide(ctx, name, Needs{Tier: tier}).Err
}
