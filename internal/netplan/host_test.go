package netplan

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// TestLockedHost checks that a document's rules open nothing that a locked host policy does not
// allow.
func TestLockedHost(t *testing.T) {
	for _, c := range []struct {
		host, asked []string
		name, addr  string
		port        uint16
		refused     bool // before anything starts
	}{
		{host: []string{"0.0.0.0/0"}, asked: []string{"169.254.169.254"}, addr: "169.254.169.254",
			port: 80},
		{host: []string{"0.0.0.0/0"}, asked: []string{"10.0.0.0/8"}, addr: "10.0.0.5", port: 80},
		{host: []string{"0.0.0.0/0"}, asked: []string{"127.0.0.1:6379"}, addr: network.Gateway,
			port: 6379},
		{host: []string{"*.corp.example"}, asked: []string{"db.corp.example"},
			name: "db.corp.example", addr: "10.0.0.5", port: 5432},
		{host: []string{"10.1.0.0/16"}, asked: []string{"10.0.0.0/8"}, addr: "10.2.0.1", port: 80},
		{asked: []string{"public", "192.168.0.0/16"}, addr: "192.168.0.1", port: 80, refused: true},
		{asked: []string{"router.example"}, name: "router.example", addr: "192.168.0.1", port: 80},
		{host: []string{"api.example.com"}, asked: []string{"web.example.com"},
			name: "web.example.com", addr: "8.8.8.8", port: 443, refused: true},
	} {
		p, err := Host{Locked: true, Allow: c.host}.Judging(turnstone.NetworkSpec{Allow: c.asked,
			Only: true})
		if c.refused != (err != nil) || err != nil && turnstone.HintOf(err) == "" {
			t.Errorf("%q, %q: %v", c.host, c.asked, err)
		}
		if err == nil && p.Decide(c.name, netip.MustParseAddr(c.addr), c.port).Allowed {
			t.Errorf("%q, %q: %s is open", c.host, c.asked, c.addr)
		}
	}
	// A turn that requests nothing gets everything that the host allows.
	p, err := Host{Locked: true, Allow: []string{"10.1.2.3:3128", "db.corp.example"}}.Judging(
		turnstone.NetworkSpec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, addr string
		port       uint16
		want       bool
	}{{"", "10.1.2.3", 3128, true}, {"db.corp.example", "10.9.9.9", 80, true},
		{"", "8.8.8.8", 443, false}, {"", "10.1.2.3", 22, false}} {
		if v := p.Decide(c.name, netip.MustParseAddr(c.addr), c.port); v.Allowed != c.want {
			t.Errorf("%+v: %+v", c, v)
		}
	}
}

// TestLockedProperty checks the same for any rules.
func TestLockedProperty(t *testing.T) {
	texts := []string{"public", "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16:80", "10.0.0.5",
		"169.254.169.254", "169.254.0.0/16", "127.0.0.1:80", "8.8.8.8",
		"*.corp.example", "db.corp.example", "*.db.corp.example:80", "web.example"}
	rules := func(t *rapid.T, what string) []string {
		return rapid.SliceOfN(rapid.SampledFrom(texts), 0, 3).Draw(t, what)
	}
	denied := func(t *rapid.T, what string) []string {
		return rapid.SliceOfN(rapid.SampledFrom(texts[1:]), 0, 2).Draw(t, what)
	}
	rapid.Check(t, func(t *rapid.T) {
		h := Host{Locked: true, Allow: rules(t, "host"), Deny: denied(t, "host denies")}
		alone, err := h.policy()
		if err != nil {
			t.Fatal(err)
		}
		p, err := h.Judging(turnstone.NetworkSpec{Allow: rules(t, "document"),
			Deny: denied(t, "document denies"), Only: rapid.Bool().Draw(t, "only")})
		if err != nil {
			return
		}
		for _, name := range []string{"", "db.corp.example", "a.db.corp.example", "web.example",
			"other.example"} {
			for _, addr := range []string{"8.8.8.8", "9.9.9.9", "10.0.0.5", "10.1.2.3",
				"169.254.169.254", "169.254.1.1", network.Gateway, "172.16.0.1"} {
				for _, port := range []uint16{80, 443} {
					a := netip.MustParseAddr(addr)
					if v := alone.Decide(name, a, port); !v.Allowed &&
						p.Decide(name, a, port).Allowed {
						t.Fatalf("%q %s:%d is open, and the host says %q", name, addr, port,
							v.Reason)
					}
				}
			}
		}
	})
}
