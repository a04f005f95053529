package executor

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/config"
	"turnstone.dev/turnstone/network"
)

// hostNetwork is what the host says of every sandbox's network.
type hostNetwork config.Network

// hostNetwork reads the host's configuration; there need not be any.
func (x *Executor) hostNetwork() (hostNetwork, error) {
	c, err := config.Load(x.home.Dir)
	return hostNetwork(c.Network), err
}

// applyHostNetwork puts what the host says to what is asked. silent says that neither
// the caller nor the document said whether there is to be a network.
func (p *plan) applyHostNetwork(x *Executor, silent bool) error {
	host, err := x.hostNetwork()
	if err != nil {
		return err
	}
	if host.Default == "off" && silent && !p.net.wanted() {
		p.shape.Network = false
	}
	if host.Default == "off" && host.Locked && p.shape.Network {
		return locked("network: on", errors.New("the host's policy is off"))
	}
	s := p.net.asked
	s.DNS = host.DNS
	if host.Locked {
		if s, err = host.within(s); err != nil {
			return err
		}
	} else if !s.Only {
		s.Allow = append(slices.Clone(s.Allow), host.Allow...)
		s.Only = false
	}
	s.Deny = append(slices.Clone(s.Deny), host.Deny...)
	p.net.spec = s
	p.net.policy, err = s.Policy()
	return err
}

// DefaultNetwork tells whether a sandbox of which nothing is said has a network here.
// The error is of kind Invalid when the host's policy cannot be read.
func (x *Executor) DefaultNetwork() (bool, error) {
	host, err := x.hostNetwork()
	return host.Default != "off", err
}

// wanted tells whether anything was said that needs a network.
func (n *networkPlan) wanted() bool {
	return n.record || n.replay || n.asked.Only || n.asked.Open || len(n.asked.Allow)+len(n.asked.Headers) > 0
}

func locked(what string, err error) error {
	return &turnstone.Error{Op: "executor.network", Kind: turnstone.Invalid, Subject: what, Err: err,
		Hint: "the policy of this host is locked: see " + config.File + " in its state directory"}
}

// within narrows what is asked to what a locked policy allows. A rule that goes beyond is an
// error, and not left out: the turn was written to need it.
func (h hostNetwork) within(s network.Spec) (network.Spec, error) {
	policy, err := (&network.Spec{Allow: h.Allow}).Policy()
	if err != nil {
		return s, err
	}
	asked, err := s.Policy()
	if err != nil {
		return s, err
	}
	open := len(h.Allow) == 0 || slices.Contains(h.Allow, network.PublicWord)
	for _, r := range asked.Allow {
		covered := slices.ContainsFunc(policy.Allow, func(o network.Rule) bool { return covers(o, r) })
		if !covered && (!open || r.Name == "") {
			return s, locked("network: allow: "+r.String(), errors.New("is beyond the host's policy"))
		}
		if !covered { // a name opens its addresses, private ones too
			s.Deny = append(slices.Clone(s.Deny), privateRanges...)
		}
	}
	if !asked.Only { // all that the host allows
		s.Allow, s.Only = append([]string{}, h.Allow...), !open
		if open && !slices.Contains(s.Allow, network.PublicWord) {
			s.Allow = append(s.Allow, network.PublicWord)
		}
	}
	return s, nil
}

// privateRanges are those that a rule with an exact name would open.
var privateRanges = []string{"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"}

// covers tells whether all that r opens is opened by outer.
func covers(outer, r network.Rule) bool {
	if outer.Port != 0 && outer.Port != r.Port {
		return false
	}
	if (outer.Name == "") != (r.Name == "") {
		return false
	}
	if r.Name == "" {
		a, b := outer.Prefix, r.Prefix
		return a.Bits() <= b.Bits() && a.Overlaps(b) && sameFamily(a, b)
	}
	if below, ok := strings.CutPrefix(outer.Name, "*."); ok {
		return strings.HasSuffix(strings.TrimPrefix(r.Name, "*."), "."+below) || r.Name == outer.Name
	}
	return outer.Name == r.Name
}

func sameFamily(a, b netip.Prefix) bool { return a.Addr().Is4() == b.Addr().Is4() }
