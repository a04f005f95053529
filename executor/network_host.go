package executor

import (
	"encoding/json"
	"errors"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/network"
)

// hostNetwork is what the host says of every sandbox's network.
type hostNetwork config.Network

// hostNetwork reads the host's configuration; there need not be any.
func (x *Host) hostNetwork() (hostNetwork, error) {
	c, err := config.Load(x.home.Root)
	return hostNetwork(c.Network), err
}

// applyHostNetwork puts what the host says to what is asked. silent says that neither
// the caller nor the document said whether there is to be a network.
func (p *plan) applyHostNetwork(x *Host, silent bool) error {
	c, err := x.config()
	if err != nil {
		return err
	}
	host := hostNetwork(c.Network)
	if p.net.host, err = rulesOf(c); err != nil {
		return err
	}
	if host.Default == "off" && silent && !p.net.wanted() {
		p.shape.Network = false
	}
	if host.Default == "off" && host.Locked && p.shape.Network {
		return locked("network: on", errors.New("the host's policy is off"))
	}
	p.net.opened = x.opened.Share()
	p.net.spec = p.net.asked
	p.net.spec.DNS = host.DNS
	if p.net.policy, err = host.judging(p.net.spec); err != nil || !p.net.asked.Asked {
		return err
	}
	granted, err := documentsPolicy(c)
	p.net.policy.Within = append(p.net.policy.Within, granted)
	return err
}

// rulesOf names all that the host says of what a network reaches. Whether there is one
// by default is not part of it.
func rulesOf(c config.Config) (turnstone.Digest, error) {
	c.Network.Default = ""
	b, err := json.Marshal([]any{c.Network, c.Documents.Allow})
	return turnstone.DigestBytes(b), err
}

// hostRules is rulesOf today.
func (x *Host) hostRules() (turnstone.Digest, error) {
	c, err := x.config()
	if err != nil {
		return "", err
	}
	return rulesOf(c)
}

// stillHostRules is was where the host still says that, else empty: a machine was made
// meanwhile, and nobody knows by which rules.
func (x *Host) stillHostRules(was turnstone.Digest) turnstone.Digest {
	if now, err := x.hostRules(); err != nil || now != was {
		return ""
	}
	return was
}

// documentsPolicy is what a document's own rules may open: public addresses, and what the
// host grants. A rule with a name cannot be compared: where it leads to is in the DNS.
func documentsPolicy(c config.Config) (network.Policy, error) {
	p, err := (&network.Spec{Allow: append(slices.Clone(c.Network.Allow), c.Documents.Allow...)}).Policy()
	p.Whose = "not granted to the document"
	return p, err
}

// judging is the policy of what is asked, with what the host says to it.
func (h hostNetwork) judging(asked network.Spec) (network.Policy, error) {
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
				return policy, locked("network: allow: "+r.String(), errors.New("is beyond the host's policy"))
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
func (h hostNetwork) policy() (network.Policy, error) {
	p, err := (&network.Spec{Allow: h.Allow, Deny: h.Deny, Only: len(h.Allow) > 0}).Policy()
	p.Whose = "the host's policy"
	return p, err
}

// DefaultNetwork tells whether a sandbox of which nothing is said has a network here.
// The error is of kind Invalid when the host's policy cannot be read.
func (x *Host) DefaultNetwork() (bool, error) {
	host, err := x.hostNetwork()
	return host.Default != "off", err
}

// wanted tells whether anything was said that needs a network.
func (n *networkPlan) wanted() bool {
	return n.record || n.replay || n.asked.Only || n.asked.Open || len(n.asked.Allow)+len(n.asked.Headers) > 0
}

func locked(what string, err error) error {
	return turnstone.NewError("executor.network", turnstone.KindInvalid, what, err).
		WithHint("the policy of this host is locked: see " + config.File + " in its state directory")
}
