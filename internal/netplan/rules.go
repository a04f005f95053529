// Package netplan decides what a sandbox's network reaches, from the turn's request and the host's
// policy. Rules are decided before anything starts; a Link then serves them.
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

// Rules are the decided rules of a sandbox's network. They are immutable.
type Rules struct {
	Asked  turnstone.NetworkSpec // requested by the caller and the document
	Spec   turnstone.NetworkSpec // Asked with the host's policy applied
	Policy network.Policy        // the policy of Spec
	Host   turnstone.Digest      // digest of the host's network rules: see RulesOf

	Mode    Mode
	Secrets *secret.Set // masked in recordings and reports
}

// A Mode tells whether a turn's network is recorded, or served from a recording.
type Mode struct {
	Record, Replay bool
	ReplayOf       string // the turn whose recording is replayed; empty: the nearest turn's
	Named          bool   // the caller, not the document, named ReplayOf
}

// Merge overrides the document's rules with the caller's: the caller's allow replaces the
// document's allow, its deny is added, and its mode and its choice of a network count if they are
// set. Both may be nil.
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

// A Use contains the properties of a sandbox that its rules must fit.
type Use struct {
	Network  bool // the sandbox has a network
	Silent   bool // neither caller nor document chose whether there is a network
	Lifetime turnstone.Lifetime
	Snapshot document.Snapshot
}

// Make decides the rules for asked on the host c. It also returns whether the sandbox has a
// network.
func Make(c config.Config, asked turnstone.NetworkSpec, mode Mode, use Use) (_ Rules, on bool,
	err error) {
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

// wanted reports whether a rule was requested that needs a network.
func (r *Rules) wanted() bool {
	return r.Mode.Record || r.Mode.Replay || r.Asked.Only || r.Asked.Open ||
		len(r.Asked.Allow)+len(r.Asked.Headers) > 0
}

// Fits rejects incompatible requests. The error is of kind Invalid.
func (r *Rules) Fits(use Use) error {
	fail := func(subject, why, hint string) error {
		return turnstone.NewError("executor.network", turnstone.KindInvalid, subject,
			errors.New(why)).WithHint(hint)
	}
	headers, recorded := len(r.Asked.Headers) > 0, r.Mode.Record || r.Mode.Replay
	stays := use.Lifetime == turnstone.LifetimeSession
	switch {
	case !use.Network && headers:
		return fail("secret header", "the network is off",
			"leave out the header, or set network: on")
	case !use.Network && recorded:
		return fail("network", "the network is off, and cannot be recorded or replayed",
			"leave out network: off")
	case !use.Network:
		return nil
	case r.Mode.Record && r.Mode.Replay:
		return fail("network", "a turn cannot both record and replay",
			"leave out record or replay")
	case stays && recorded:
		return fail("network", "connections of a session's machine belong to more than one turn",
			"record and replay with lifetime: turn")
	case stays && headers:
		return fail("secret header", "the machine outlives the turn that gets the header",
			"run this turn with lifetime: turn")
	case use.Snapshot == document.SnapshotVM && (r.Asked.Open || headers || r.Mode.Replay):
		return fail("snapshot: vm",
			"the machine trusts a certificate authority that ends with the turn",
			"leave out the snapshot, or intercept and secret headers")
	}
	return nil
}

// Hide adds the values of the secret headers to set, which may be nil.
func (r *Rules) Hide(set *secret.Set) *secret.Set {
	for _, h := range r.Asked.Headers {
		set = set.With("header "+h.Name+" for "+h.Host, network.HeaderTexts(h)...)
	}
	return set
}
