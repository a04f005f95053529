package network_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
)

// edgeOwn are the addresses of the host in these tests.
var edgeOwn = []netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("10.0.0.5")}

func edgeIsOwn(a netip.Addr) bool { return slices.Contains(edgeOwn, a) }

func genEdgeAddr() *rapid.Generator[netip.Addr] {
	return rapid.OneOf(rapid.Map(rapid.SampledFrom(networktest.EdgeAddrs), netip.MustParseAddr),
		network.GenAddr())
}

func genEdgeName() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "corp.example", "db.corp.example", "a.db.corp.example",
		"web.example", "other.test"})
}

// TestWithinIsBoth checks that a policy within others allows only what all of them allow: none
// widens another, and any deny wins.
func TestWithinIsBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		document, host, third := networktest.EdgePolicy().Draw(t, "document"),
			networktest.EdgePolicy().Draw(t, "host"), networktest.EdgePolicy().Draw(t, "third")
		host.Whose = "the host"
		both := document
		both.Within = []network.Policy{host}
		if rapid.Bool().Draw(t, "nested") {
			both.Within[0].Within = []network.Policy{third}
		} else {
			both.Within = append(both.Within, third)
		}
		alone := []*network.Judge{network.NewJudge(document, edgeIsOwn),
			network.NewJudge(host, edgeIsOwn), network.NewJudge(third, edgeIsOwn)}
		j := network.NewJudge(both, edgeIsOwn)
		name, addr, port := genEdgeName().Draw(t, "name"), genEdgeAddr().Draw(t, "address"),
			rapid.SampledFrom(networktest.EdgePorts).Draw(t, "port")
		agree := func(what string, got network.Verdict, ask func(*network.Judge) network.Verdict) {
			all := true
			for i, a := range alone {
				v := ask(a)
				all = all && v.Allowed
				if got.Allowed && !v.Allowed {
					t.Fatalf("%s is allowed, and policy %d says %q", what, i, v.Reason)
				}
			}
			if got.Allowed != all || got.Allowed == (got.Reason != "") {
				t.Fatalf("%s: %+v, each by itself: %v", what, got, all)
			}
		}
		agree("the connection", j.Decide(name, addr, port),
			func(a *network.Judge) network.Verdict { return a.Decide(name, addr, port) })
		agree("the answer", j.Answer(name, addr),
			func(a *network.Judge) network.Verdict { return a.Answer(name, addr) })
		agree("the lookup", j.Lookup(name),
			func(a *network.Judge) network.Verdict { return a.Lookup(name) })

		// What the connection's first packet and first bytes may do, each policy allows.
		names := rapid.SliceOfNDistinct(
			genEdgeName().Filter(func(s string) bool { return s != "" }), 0, 3, rapid.ID).Draw(t,
			"names")
		to, protocol := netip.AddrPortFrom(addr, port),
			rapid.SampledFrom([]string{"tcp", "udp"}).Draw(t, "protocol")
		known := network.NewNames(10, time.Hour)
		for _, n := range names {
			known.Add(addr, n)
		}
		g := network.Greeting{Protocol: rapid.SampledFrom(
			[]network.GreetingProtocol{network.GreetingSilent, network.GreetingPartial,
				network.GreetingUnknown, network.GreetingTLS, network.GreetingHTTP}).Draw(t,
			"spoken")}
		if g.Protocol == network.GreetingTLS || g.Protocol == network.GreetingHTTP {
			g.Name = name
		}
		_, opened := j.Connect(protocol, to, names)
		greeted := j.Check(to, names).Greeting(g, known) == ""
		for i, a := range alone {
			if r, ok := a.Connect(protocol, to, names); opened && !ok {
				t.Fatalf("%s %s %q is open, and policy %d says %q", protocol, to, names, i,
					r.Reason)
			}
			if reason := a.Check(to, names).Greeting(g, known); greeted && reason != "" {
				t.Fatalf("%+v at %s %q is let through, and policy %d says %q", g, to, names, i,
					reason)
			}
		}
		if j.Loopback() && (!alone[0].Loopback() || !alone[1].Loopback()) {
			t.Fatal("a port of the loopback that not all of them open")
		}
	})
}

// TestMayOpen checks that a rule that is refused early opens nothing.
func TestMayOpen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host, rule := networktest.EdgePolicy().Draw(t, "host"), networktest.EdgeRule().Draw(t,
			"rule")
		if rule.CheckAllow() != nil || host.MayOpen(rule) {
			return
		}
		j := network.NewJudge(network.Policy{Only: true, Allow: []network.Rule{rule},
			Within: []network.Policy{host}}, edgeIsOwn)
		addr, name := genEdgeAddr().Draw(t, "address"), genEdgeName().Draw(t, "name")
		if rule.Prefix.IsValid() && rapid.Bool().Draw(t, "first") {
			addr = rule.Prefix.Addr()
		}
		for _, port := range append(networktest.EdgePorts, rule.Port) {
			if v := j.Decide(name, addr, port); v.Allowed &&
				(name == "" || j.Lookup(name).Allowed || rule.Name == "") {
				t.Fatalf("%s is refused, and opens %q %s:%d", rule, name, addr, port)
			}
		}
	})
	open, corp, proxy := network.Policy{}, network.Policy{Only: true, Allow: network.ParseRules(t,
		"*.corp.example", "10.0.0.0/8")}, network.Policy{Only: true, Allow: network.ParseRules(t,
		"10.1.2.3:3128")}
	looked := func(address string) network.Policy { // by a rule for another port
		return network.Policy{Only: true, Allow: network.ParseRules(t, "db.corp.example:22", address)}
	}
	for _, c := range []struct {
		p    network.Policy
		rule string
		want bool
	}{
		{open, "10.0.0.5", false}, {open, "169.254.169.254", false}, {open, "127.0.0.1:80", false},
		{open, "db.corp.example", true}, {open, "8.8.8.8", true}, {open, "0.0.0.0/0", true},
		{corp, "db.corp.example", true}, {corp, "*.example", true}, {corp, "web.example", false},
		{corp, "10.0.0.5", true}, {corp, "169.254.169.254", false}, {corp, "127.0.0.1:6379", false},
		{proxy, "10.1.2.3", true}, {proxy, "10.1.2.3:80", false}, {proxy, "10.0.0.0/8", true},
		{looked("10.0.0.0/8"), "db.corp.example:53", true},
		{looked("10.0.0.0/8:80"), "db.corp.example:53", false},
		{looked("web.example"), "db.corp.example:53", false},
		{proxy, "web.example", false}, {network.Policy{Within: []network.Policy{proxy}}, "8.8.8.8",
			false},
	} {
		if got := c.p.MayOpen(network.ParseRules(t, c.rule)[0]); got != c.want {
			t.Errorf("%+v: %s: %v", c.p, c.rule, got)
		}
	}
}

// TestOwnServices checks that the caller's own services are reached whatever is denied, and nothing
// else.
func TestOwnServices(t *testing.T) {
	own := network.ParseRules(t, "127.0.0.1:4000")
	p := network.Policy{Only: true, Own: own, Deny: network.ParseRules(t, "0.0.0.0/0"),
		Within: []network.Policy{{Only: true, Own: network.ParseRules(t, "127.0.0.1:4001")}}}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	j, gateway := network.NewJudge(p, edgeIsOwn), netip.MustParseAddr(network.Gateway)
	for port, want := range map[uint16]bool{4000: true, 4001: false, 22: false} {
		if got := j.Decide("", gateway, port).Allowed; got != want {
			t.Errorf("port %d: %v", port, got)
		}
	}
	if !j.Loopback() || j.Decide("", netip.MustParseAddr("8.8.8.8"), 4000).Allowed {
		t.Error("not the one service alone")
	}
	for _, bad := range []string{"127.0.0.1", "a.example:80", "10.0.0.0/8:80"} {
		if (network.Policy{Own: network.ParseRules(t, bad)}).Validate() == nil {
			t.Errorf("%s is a service", bad)
		}
	}
	deep := network.Policy{}
	for range network.MaxWithin + 1 {
		deep = network.Policy{Within: []network.Policy{deep}}
	}
	if deep.Validate() == nil {
		t.Error("any depth will do")
	}
}
