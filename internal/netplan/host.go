package netplan

import (
	"encoding/json"
	"errors"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/network"
)

// Host is the host's configuration for every sandbox's network.
type Host config.Network

// RulesOf digests the host's rules on what a network reaches. The default for whether a sandbox has
// a network is not included.
func RulesOf(c config.Config) (turnstone.Digest, error) {
	c.Network.Default = ""
	b, err := json.Marshal([]any{c.Network, c.Documents.Allow})
	return turnstone.DigestBytes(b), err
}

// DocumentsPolicy returns the limit of a document's own rules: public addresses, and the host's
// grants. A rule with a name cannot be compared with addresses, because the DNS decides where the
// name leads.
func DocumentsPolicy(c config.Config) (network.Policy, error) {
	p, err := network.PolicyOf(&turnstone.NetworkSpec{Allow: append(slices.Clone(c.Network.Allow),
		c.Documents.Allow...)})
	p.Whose = "not granted to the document"
	return p, err
}

// Judging returns the policy of the requested network, with the host's rules applied.
func (h Host) Judging(asked turnstone.NetworkSpec) (network.Policy, error) {
	policy, err := network.PolicyOf(&asked)
	if err != nil {
		return policy, err
	}
	own, err := h.policy()
	if err != nil {
		return policy, err
	}
	if h.Locked {
		// A rule that has no effect is an error instead of being ignored: the turn depends on it.
		for _, r := range policy.Allow {
			if !own.MayOpen(r) {
				return policy, Locked("network: allow: "+r.String(),
					errors.New("is beyond the host's policy"))
			}
		}
		policy.Within = append(policy.Within, own)
	}
	if !policy.Only { // with Within, Only allows exactly what the host allows
		policy.Allow = append(policy.Allow, own.Allow...)
	}
	policy.Deny = append(policy.Deny, own.Deny...)
	return policy, policy.Validate()
}

// policy returns the host's own policy: the limit of every sandbox's network, whatever a turn
// requests.
func (h Host) policy() (network.Policy, error) {
	p, err := network.PolicyOf(&turnstone.NetworkSpec{Allow: h.Allow, Deny: h.Deny,
		Only: len(h.Allow) > 0})
	p.Whose = "the host's policy"
	return p, err
}

// Locked returns the error for a request that exceeds a locked policy.
func Locked(what string, err error) error {
	return turnstone.NewError("executor.network", turnstone.KindInvalid, what, err).
		WithHint("see " + config.File + " in the state directory: the policy of this host is locked")
}
