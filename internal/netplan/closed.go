package netplan

import (
	"net"
	"net/netip"
	"slices"

	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/network"
)

// A Closed is a rule that opens an address which is not public.
type Closed struct {
	Rule string // as it was written
	Word string // the kind of address, such as "metadata address"
}

// Ungranted returns the rules of allow that open closed addresses, which the host c grants neither to
// documents nor to all sandboxes. A rule with a name opens public addresses only: see
// DocumentsPolicy. Invalid rules are not returned: who reads the policy reports them.
func Ungranted(c config.Config, allow []string) (out []Closed) {
	given := granted(c)
	for _, text := range allow {
		r, err := network.ParseRule(text)
		if err != nil || slices.ContainsFunc(given, func(g network.Rule) bool { return ruleWithin(g, r) }) {
			continue
		}
		if word := opensClosed(r); word != "" {
			out = append(out, Closed{Rule: text, Word: word})
		}
	}
	return out
}

// granted returns the rules that the host grants to documents.
func granted(c config.Config) (out []network.Rule) {
	for _, text := range append(slices.Clone(c.Network.Allow), c.Documents.Allow...) {
		if r, err := network.ParseRule(text); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// opensClosed returns the kind of address that a rule with an address opens beyond the Internet; empty:
// none.
func opensClosed(r network.Rule) string {
	if r.Name != "" {
		return ""
	}
	at, port := r.Prefix.Addr(), r.Port
	if port == 0 {
		port = 443
	}
	only := network.Policy{Allow: []network.Rule{r}, Only: true}
	if d := (network.Policy{}).Decide("", at, port); !d.Allowed && only.Decide("", at, port).Allowed {
		return d.Reason
	}
	if r.Prefix.IsSingleIP() && isHosts(at) { // which may be public
		return "the host's own address"
	}
	return ""
}

// isHosts reports whether an address belongs to one of this machine's interfaces.
func isHosts(at netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == at.Unmap()
	})
}

// ruleWithin reports whether outer opens everything that r opens. Both have an address.
func ruleWithin(outer, r network.Rule) bool {
	if outer.Name != "" || r.Name != "" || outer.Port != 0 && outer.Port != r.Port ||
		outer.Prefix.Bits() > r.Prefix.Bits() || !outer.Prefix.Contains(r.Prefix.Addr()) {
		return false
	}
	only := network.Policy{Allow: []network.Rule{outer}, Only: true}
	return outer.Prefix == r.Prefix || only.Decide("", r.Prefix.Addr(), max(r.Port, 1)).Allowed
}
