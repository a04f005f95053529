// Package networktest contains what the tests of the network's packages share: a host with handlers
// and names, a server that reads requests leniently, and generators of policies.
package networktest

import (
	"net/netip"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/network"
)

// EdgeAddrs are addresses near the limits of closed ranges.
var EdgeAddrs = []string{"8.8.8.8", "93.184.216.34", "127.0.0.1", "127.0.0.2", "10.0.0.0",
	"10.0.0.5", "10.255.255.255", "11.0.0.0", "9.255.255.255",
	"10.0.2.2", "169.254.169.254", "169.254.169.253", "169.254.0.1", "169.253.255.255",
	"172.15.255.255", "172.16.0.0",
	"172.31.255.255", "172.32.0.0", "192.168.0.1", "192.167.255.255", "192.169.0.0", "100.64.0.0",
	"100.100.100.200", "100.127.255.255", "100.128.0.0",
	"198.51.100.77", "198.51.100.76", "168.63.129.16", "192.0.0.192", "198.18.0.1",
	// a guest cannot connect to the last ones
	"0.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.2.3", "10.0.2.15"}

// EdgePorts are ports that the rules of EdgeRule may name.
var EdgePorts = []uint16{22, 53, 80, 443, 6379}

// EdgeRule generates rules whose prefixes and names overlap.
func EdgeRule() *rapid.Generator[network.Rule] {
	return rapid.Custom(func(t *rapid.T) network.Rule {
		r := network.Rule{}
		if rapid.Bool().Draw(t, "pinned") {
			r.Port = rapid.SampledFrom(EdgePorts).Draw(t, "port")
		}
		if rapid.IntRange(0, 2).Draw(t, "form") == 0 {
			r.Name = rapid.SampledFrom([]string{"corp.example", "db.corp.example", "*.corp.example",
				"*.db.corp.example", "*.example", "web.example"}).Draw(t, "name")
			return r
		}
		a := rapid.Map(rapid.SampledFrom(EdgeAddrs), netip.MustParseAddr).Draw(t, "prefix")
		bits := rapid.SampledFrom([]int{0, 8, 10, 12, 16, 24, 31, 32, 32}).Draw(t, "bits")
		r.Prefix = netip.PrefixFrom(a, bits).Masked()
		return r
	})
}

// EdgePolicy generates policies that Validate accepts.
func EdgePolicy() *rapid.Generator[network.Policy] {
	return rapid.Custom(func(t *rapid.T) network.Policy {
		p := network.Policy{Only: rapid.Bool().Draw(t, "only"),
			Deny: rapid.SliceOfN(EdgeRule(), 0, 2).Draw(t, "deny")}
		for _, r := range rapid.SliceOfN(EdgeRule(), 0, 4).Draw(t, "allow") {
			if r.CheckAllow() == nil {
				p.Allow = append(p.Allow, r)
			}
		}
		return p
	})
}
