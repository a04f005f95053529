package netplan

import (
	"encoding/json"
	"errors"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/network"
)

// Host is what the host says of every sandbox's network.
type Host config.Network

// RulesOf names all that the host says of what a network reaches. Whether there is one
// by default is not part of it.
func RulesOf(c config.Config) (turnstone.Digest, error) {
	c.Network.Default = ""
	b, err := json.Marshal([]any{c.Network, c.Documents.Allow})
	return turnstone.DigestBytes(b), err
}

// DocumentsPolicy is what a document's own rules may open: public addresses, and what the
// host grants. A rule with a name cannot be compared: where it leads to is in the DNS.
func DocumentsPolicy(c config.Config) (network.Policy, error) {
	p, err := (&network.Spec{Allow: append(slices.Clone(c.Network.Allow), c.Documents.Allow...)}).Policy()
	p.Whose = "not granted to the document"
	return p, err
}

// Judging is the policy of what is asked, with what the host says to it.
func (h Host) Judging(asked network.Spec) (network.Policy, error) {
	policy, err := asked.Policy()
	if err != nil {
		return policy, err
	}
	own, err := h.policy()
	if err != nil {
		return policy, err
	}
	if h.Locked {
		// A rule that opens nothing is an error, and not left out: the turn was written to
		// need it.
		for _, r := range policy.Allow {
			if !own.MayOpen(r) {
				return policy, Locked("network: allow: "+r.String(), errors.New("is beyond the host's policy"))
			}
		}
		policy.Within = append(policy.Within, own)
	}
	if !policy.Only { // with Within this is all that the host allows
		policy.Allow = append(policy.Allow, own.Allow...)
	}
	policy.Deny = append(policy.Deny, own.Deny...)
	return policy, policy.Validate()
}

// policy is the host's own: what a sandbox may reach here whatever a turn asks for.
func (h Host) policy() (network.Policy, error) {
	p, err := (&network.Spec{Allow: h.Allow, Deny: h.Deny, Only: len(h.Allow) > 0}).Policy()
	p.Whose = "the host's policy"
	return p, err
}

// Locked is the error of what goes beyond a locked policy.
func Locked(what string, err error) error {
	return turnstone.NewError("executor.network", turnstone.KindInvalid, what, err).
		WithHint("the policy of this host is locked: see " + config.File + " in its state directory")
}
