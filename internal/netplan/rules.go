// Package netplan decides what a sandbox's network reaches: by what is asked for, and by what the
// host says of it. Rules are decided before anything is started; a Link is what then serves them.
package netplan

import (
	"errors"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/secret"
)

// Rules are what is decided of a sandbox's network. They do not change once they are made.
type Rules struct {
	Asked  network.Spec     // by the caller and the document
	Spec   network.Spec     // with what the host's policy says
	Policy network.Policy   // of Spec
	Host   turnstone.Digest // what the host says of networks: see RulesOf

	Mode    Mode
	Secrets *secret.Set // masked in what is recorded and told
}

// A Mode says whether a turn's network is recorded, or a recording served.
type Mode struct {
	Record, Replay bool
	ReplayOf       string // the turn whose recording is replayed; empty: the nearest one's
	Named          bool   // the caller named ReplayOf, and not the document
}

// Merge puts the caller's rules in the place of the document's: its allow replaces that of the
// document, its deny comes beside, and its mode counts when it says one, or whether there is to be
// a network. Both may be nil.
func Merge(front, asked *document.NetworkRules, said bool) (rules, mode document.NetworkRules) {
	if front != nil {
		rules, mode = *front, *front
	}
	if asked == nil {
		asked = &document.NetworkRules{}
	}
	if asked.HasAllow {
		rules.Allow, rules.HasAllow = asked.Allow, true
	}
	rules.Deny = append(slices.Clone(rules.Deny), asked.Deny...)
	rules.Intercept = rules.Intercept || asked.Intercept
	rules.NoHostCA = rules.NoHostCA || asked.NoHostCA
	if said || asked.Record || asked.Replay {
		mode = *asked
	}
	return rules, mode
}

// A Use is of a sandbox what its rules have to fit.
type Use struct {
	Network  bool // it has one
	Silent   bool // nobody said whether there is to be a network
	Lifetime document.Lifetime
	Snapshot document.Snapshot
}

// Make decides on asked for a sandbox of the host c. It returns whether the sandbox has a network
// after all.
func Make(c config.Config, asked network.Spec, mode Mode, use Use) (_ Rules, on bool, err error) {
	r := Rules{Asked: asked, Mode: mode}
	if r.Host, err = RulesOf(c); err != nil {
		return r, false, err
	}
	host := Host(c.Network)
	if host.Default == "off" && use.Silent && !r.wanted() {
		use.Network = false
	}
	if host.Default == "off" && host.Locked && use.Network {
		return r, false, Locked("network: on", errors.New("the host's policy is off"))
	}
	r.Spec = asked
	r.Spec.DNS = host.DNS
	if r.Policy, err = host.Judging(r.Spec); err != nil {
		return r, false, err
	}
	if asked.Asked {
		granted, err := DocumentsPolicy(c)
		if err != nil {
			return r, false, err
		}
		r.Policy.Within = append(r.Policy.Within, granted)
	}
	return r, use.Network, r.Fits(use)
}

// wanted tells whether anything was said that needs a network.
func (r *Rules) wanted() bool {
	return r.Mode.Record || r.Mode.Replay || r.Asked.Only || r.Asked.Open || len(r.Asked.Allow)+len(r.Asked.Headers) > 0
}

// Fits refuses what cannot go together. The error is of kind Invalid.
func (r *Rules) Fits(use Use) error {
	fail := func(subject, why, hint string) error {
		return turnstone.NewError("executor.network", turnstone.KindInvalid, subject,
			errors.New(why)).WithHint(hint)
	}
	headers, recorded := len(r.Asked.Headers) > 0, r.Mode.Record || r.Mode.Replay
	stays := use.Lifetime == document.LifetimeSession
	switch {
	case !use.Network && headers:
		return fail("secret header", "the network is off", "leave it out, or say network: on")
	case !use.Network && recorded:
		return fail("network", "it is off, and cannot be recorded or replayed",
			"leave out network: off")
	case !use.Network:
		return nil
	case r.Mode.Record && r.Mode.Replay:
		return fail("network", "a turn cannot both record and replay",
			"leave one of them out")
	case stays && recorded:
		return fail("network", "connections of a machine that stays belong to more than one turn",
			"record and replay with lifetime: turn")
	case stays && headers:
		return fail("secret header", "the machine stays longer than the turn that is given it",
			"run this turn with lifetime: turn")
	case use.Snapshot == document.SnapshotVM && (r.Asked.Open || headers || r.Mode.Replay):
		return fail("snapshot: vm", "the machine trusts a certificate authority that ends with the turn",
			"leave out the snapshot, or intercept and secret headers")
	}
	return nil
}

// Hide adds the values of the secret headers to set, which may be nil.
func (r *Rules) Hide(set *secret.Set) *secret.Set {
	for _, h := range r.Asked.Headers {
		set = set.With("header "+h.Name+" for "+h.Host, h.Values()...)
	}
	return set
}
