package buildsandbox

import (
	"net"
	"net/netip"
	"testing"

	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network"
)

func TestPolicy(t *testing.T) {
	port := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	p, err := policy(netplan.Host{}, []string{"example.org:443"}, port)
	if err != nil || !p.Only || len(p.Allow) != 1 || len(p.Own) != 1 || p.Own[0].Port != 4711 ||
		!p.Own[0].Prefix.Contains(netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := policy(netplan.Host{}, nil, nil); err != nil || !p.Only || len(p.Allow) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := policy(netplan.Host{}, []string{"not a host"}, nil); err == nil {
		t.Error("a rule that is none")
	}
}

// TestPolicyOfTheHost checks that a spec allows nothing that a turn could not reach, and that the
// build's own registry is reachable under any host policy.
func TestPolicyOfTheHost(t *testing.T) {
	port := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000}
	gateway, inside := netip.MustParseAddr(network.Gateway), netip.MustParseAddr("10.1.2.3")
	for what, c := range map[string]struct {
		host   netplan.Host
		allow  []string
		inside bool // 10.1.2.3 is reachable
		port22 bool // and port 22 of the loopback
		err    bool
	}{
		"nothing said":         {allow: []string{"10.0.0.0/8", "127.0.0.1:22"}, inside: true, port22: true},
		"denied":               {host: netplan.Host{Deny: []string{"10.0.0.0/8"}}, allow: []string{"10.0.0.0/8", "127.0.0.1:22"}, port22: true},
		"loopback denied":      {host: netplan.Host{Deny: []string{"127.0.0.1"}}, allow: []string{"10.0.0.0/8", "127.0.0.1:22"}, inside: true},
		"locked":               {host: netplan.Host{Locked: true}, allow: []string{"10.0.0.0/8"}, err: true},
		"locked and within":    {host: netplan.Host{Locked: true, Allow: []string{"10.0.0.0/8"}}, allow: []string{"10.1.2.3:80"}, inside: true},
		"locked, a name":       {host: netplan.Host{Locked: true}, allow: []string{"router.example"}},
		"locked off":           {host: netplan.Host{Locked: true, Default: "off"}, allow: []string{"example.org"}, err: true},
		"locked off, no rules": {host: netplan.Host{Locked: true, Default: "off"}},
	} {
		p, err := policy(c.host, c.allow, port)
		if (err != nil) != c.err {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil {
			continue
		}
		if got := p.Decide("router.example", inside, 80).Allowed; got != c.inside {
			t.Errorf("%s: 10.1.2.3 is reached: %v", what, got)
		}
		if got := p.Decide("", gateway, 22).Allowed; got != c.port22 {
			t.Errorf("%s: port 22 of the loopback is reached: %v", what, got)
		}
		if !p.Decide("", gateway, 4000).Allowed ||
			p.Decide("", netip.MustParseAddr("198.51.100.1"), 80).Allowed {
			t.Errorf("%s: %+v", what, p)
		}
	}
}
