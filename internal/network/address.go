package network

import (
	"net/netip"
)

// A class is the kind of address that a guest wants to reach.
type class int

const (
	public  class = iota
	private       // opened by a prefix inside its range, or by an exact name
	closed        // opened by a prefix inside its range
	own           // an address of the host itself: opened by a rule with exactly this address
	never         // no rule opens it
)

// A kind is a range of addresses that are not public, with its word in messages.
type kind struct {
	prefix netip.Prefix
	class  class
	word   string
}

// kinds returns the ranges that are not public; the first range that contains an address counts.
// They are the entries of IANA's special-purpose registries (RFC 6890) that are not globally
// reachable, without IPv4's documentation ranges, which have no hosts, and with the addresses where
// clouds serve credentials.
func kinds() []kind {
	return []kind{
		{netip.MustParsePrefix("169.254.169.254/32"), closed, "metadata address"},
		{netip.MustParsePrefix("100.100.100.200/32"), closed, "metadata address"}, // Alibaba
		{netip.MustParsePrefix("168.63.129.16/32"), closed, "metadata address"},   // Azure
		{netip.MustParsePrefix("192.0.0.192/32"), closed, "metadata address"},     // Oracle
		{netip.MustParsePrefix("0.0.0.0/8"), never, "address of no host"},
		{netip.MustParsePrefix("10.0.0.0/8"), private, "private address"},
		{netip.MustParsePrefix("100.64.0.0/10"), private, "private address"},
		{netip.MustParsePrefix("127.0.0.0/8"), closed, "loopback address"},
		{netip.MustParsePrefix("169.254.0.0/16"), closed, "link-local address"},
		{netip.MustParsePrefix("172.16.0.0/12"), private, "private address"},
		{netip.MustParsePrefix("192.0.0.0/24"), closed, "reserved address"},
		{netip.MustParsePrefix("192.168.0.0/16"), private, "private address"},
		{netip.MustParsePrefix("198.18.0.0/15"), closed, "reserved address"},
		{netip.MustParsePrefix("224.0.0.0/4"), never, "multicast address"},
		{netip.MustParsePrefix("255.255.255.255/32"), never, "broadcast address"},
		{netip.MustParsePrefix("240.0.0.0/4"), never, "reserved address"},
		{netip.MustParsePrefix("fd00:ec2::254/128"), closed, "metadata address"},
		{netip.MustParsePrefix("fd20:ce::254/128"), closed, "metadata address"},
		{netip.MustParsePrefix("::/128"), never, "address of no host"},
		{netip.MustParsePrefix("::1/128"), closed, "loopback address"},
		// a network's own NAT64
		{netip.MustParsePrefix("64:ff9b:1::/48"), closed, "reserved address"},
		// Teredo, ORCHID and others
		{netip.MustParsePrefix("2001::/23"), closed, "reserved address"},
		{netip.MustParsePrefix("2001:db8::/32"), closed, "reserved address"},
		{netip.MustParsePrefix("3fff::/20"), closed, "reserved address"},
		{netip.MustParsePrefix("fc00::/7"), private, "private address"},
		{netip.MustParsePrefix("fe80::/10"), closed, "link-local address"},
		{netip.MustParsePrefix("fec0::/10"), closed, "reserved address"},
		{netip.MustParsePrefix("ff00::/8"), never, "multicast address"},
	}
}

// globalUnicast is the only range of IPv6 with public addresses (RFC 4291).
const globalUnicast = "2000::/3"

// Embedded returns the IPv4 address in an IPv6 address that wraps it: mapped and compatible (RFC
// 4291), NAT64 (RFC 6052), 6to4 (RFC 3056). For other addresses it returns a without its zone.
func Embedded(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is4() || !a.IsValid() {
		return a
	}
	b := a.As16()
	switch {
	case [12]byte(b[:12]) == [12]byte{} && !a.IsUnspecified() && !a.IsLoopback(),
		[12]byte(b[:12]) == [12]byte{1: 0x64, 2: 0xff, 3: 0x9b}:
		return netip.AddrFrom4([4]byte(b[12:]))
	case b[0] == 0x20 && b[1] == 0x02:
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return a
}

// HostAddress returns the real destination of a guest's connection: the gateway stands for the
// host's loopback.
func HostAddress(to netip.AddrPort) netip.AddrPort {
	if to.Addr() == netip.MustParseAddr(Gateway) {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port())
	}
	return netip.AddrPortFrom(Embedded(to.Addr()), to.Port())
}
