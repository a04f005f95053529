package doctor

import (
	"context"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/driver"
)

// A tierTrial says whether this host has deterministic machines of a tier.
type tierTrial struct {
	tier turnstone.Tier
	err  error // why it has none; nil: it has
}

// A tierHost tries the tiers; see driver.Chooser.
type tierHost interface {
	HasTier(ctx context.Context, name string, tier turnstone.Tier) error
}

// lookAtTiers tries each tier on the substrate that turns ask for.
func lookAtTiers(ctx context.Context, on tierHost, asked string) (all []tierTrial) {
	for _, t := range turnstone.Tiers() {
		all = append(all, tierTrial{t, on.HasTier(ctx, asked, t)})
	}
	return all
}

// tierName returns the name of the finding about a tier.
func tierName(t turnstone.Tier) string { return "tier " + string(t) }

// tierLines tells which tiers of deterministic turns this host has, and which one a turn gets that
// names none.
func tierLines(s scene) (lines []Finding) {
	first := slices.IndexFunc(s.tiers, func(t tierTrial) bool { return t.err == nil })
	for i, t := range s.tiers {
		f := Finding{Name: tierName(t.tier), Status: StatusOK, Detail: "available"}
		program := driver.GVisor
		if t.tier == turnstone.TierStrict {
			program = driver.QEMU
		}
		switch {
		case t.err != nil:
			f.Status = StatusWarn
			f.Detail = "not available, because it needs " + program + ": " + brief.Line(t.err.Error())
		case i == first:
			f.Detail += ", and the default of a deterministic turn"
		default:
			f.Detail += " with tier: " + string(t.tier) + " or --tier " + string(t.tier)
		}
		lines = append(lines, f)
	}
	return lines
}

// Tiers returns the tiers of deterministic turns that this machine has, best first: the first is the
// one of a turn that names none.
func Tiers(found []Finding) []turnstone.Tier {
	has := []turnstone.Tier{}
	for _, t := range turnstone.Tiers() {
		if slices.ContainsFunc(found, func(f Finding) bool {
			return f.Name == tierName(t) && f.Status == StatusOK
		}) {
			has = append(has, t)
		}
	}
	return has
}
