package gateway

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops is the number of addresses in X-Forwarded-For that are looked at.
const maxHops = 32

// callerOf returns the address that a request is counted under, as a network. It is false for a
// unix socket. X-Forwarded-For counts only as far as trusted proxies wrote it: from its end, up to
// the first address that is none of theirs.
func callerOf(r *http.Request, proxies []netip.Prefix) (netip.Prefix, bool) {
	at, ok := addressOf(r.RemoteAddr)
	if !ok {
		return netip.Prefix{}, false
	}
	hops := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for n := 0; within(at, proxies) && n < min(len(hops), maxHops); n++ {
		a, err := netip.ParseAddr(strings.TrimSpace(hops[len(hops)-1-n]))
		if err != nil {
			break // what comes before it could be anyone's claim
		}
		at = a.Unmap().WithZone("")
	}
	return network(at), true
}

// addressText returns a network of callerOf as it is logged: a single address without its length.
func addressText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// addressOf parses HOST:PORT.
func addressOf(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddrPort(s)
	return a.Addr().Unmap().WithZone(""), err == nil
}

// network returns what is counted as one address: whoever has an IPv6 address has at least a /64.
func network(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the number of bits fits
	return p
}

func within(a netip.Addr, all []netip.Prefix) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}
