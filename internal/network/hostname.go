package network

import (
	"net/netip"
	"strings"
)

// BareName returns a host's name in the form for comparisons: lower case, without a final dot.
func BareName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// HostOnly returns the host of a request's Host header, in the form for comparisons; "" unless it
// is a host with or without a port, because another reader could take the rest for the host.
func HostOnly(host string) string {
	name, port, _ := strings.Cut(host, ":")
	if inner, ok := strings.CutPrefix(host, "["); ok {
		var rest string
		var closed, colon bool
		name, rest, closed = strings.Cut(inner, "]")
		port, colon = strings.CutPrefix(rest, ":")
		if a, err := netip.ParseAddr(name); err != nil || !a.Is6() || a.Zone() != "" || !closed ||
			rest != "" && !colon {
			return ""
		}
	} else if strings.ContainsFunc(name, func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') &&
			!strings.ContainsRune(".-_", r)
	}) {
		return ""
	}
	if strings.Trim(port, "0123456789") != "" || len(port) > 5 {
		return ""
	}
	return BareName(name)
}

// CanonicalName returns s in the form of policies, or "" if it is no name.
func CanonicalName(s string) string {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if CheckName(s) != nil || LooksLikeAddress(s) {
		return ""
	}
	return s
}
