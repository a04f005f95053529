package network

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"pgregory.net/rapid"
)

// edgeAddrs are near the borders of what is closed.
var edgeAddrs = []string{"8.8.8.8", "93.184.216.34", "127.0.0.1", "127.0.0.2", "10.0.0.0", "10.0.0.5", "10.255.255.255", "11.0.0.0", "9.255.255.255",
	"10.0.2.2", "169.254.169.254", "169.254.169.253", "169.254.0.1", "169.253.255.255", "172.15.255.255", "172.16.0.0",
	"172.31.255.255", "172.32.0.0", "192.168.0.1", "192.167.255.255", "192.169.0.0", "100.64.0.0", "100.100.100.200", "100.127.255.255", "100.128.0.0",
	"198.51.100.77", "198.51.100.76", "168.63.129.16", "192.0.0.192", "198.18.0.1",
	"0.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.2.3", "10.0.2.15"} // a guest cannot connect to the last ones

// edgeOwn are the addresses of the host in these tests.
var edgeOwn = []netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("10.0.0.5")}

func edgeIsOwn(a netip.Addr) bool { return slices.Contains(edgeOwn, a) }

var edgePorts = []uint16{22, 53, 80, 443, 6379}

func genEdgeAddr() *rapid.Generator[netip.Addr] {
	return rapid.OneOf(rapid.Map(rapid.SampledFrom(edgeAddrs), netip.MustParseAddr), genAddr())
}

// genEdgeRule generates rules whose prefixes and names meet.
func genEdgeRule() *rapid.Generator[Rule] {
	return rapid.Custom(func(t *rapid.T) Rule {
		r := Rule{}
		if rapid.Bool().Draw(t, "pinned") {
			r.Port = rapid.SampledFrom(edgePorts).Draw(t, "port")
		}
		if rapid.IntRange(0, 2).Draw(t, "form") == 0 {
			r.Name = rapid.SampledFrom([]string{"corp.example", "db.corp.example", "*.corp.example", "*.db.corp.example", "*.example", "web.example"}).Draw(t, "name")
			return r
		}
		a := rapid.Map(rapid.SampledFrom(edgeAddrs), netip.MustParseAddr).Draw(t, "prefix")
		bits := rapid.SampledFrom([]int{0, 8, 10, 12, 16, 24, 31, 32, 32}).Draw(t, "bits")
		r.Prefix = netip.PrefixFrom(a, bits).Masked()
		return r
	})
}

// genEdgePolicy generates policies that Validate takes.
func genEdgePolicy() *rapid.Generator[Policy] {
	return rapid.Custom(func(t *rapid.T) Policy {
		p := Policy{Only: rapid.Bool().Draw(t, "only"), Deny: rapid.SliceOfN(genEdgeRule(), 0, 2).Draw(t, "deny")}
		for _, r := range rapid.SliceOfN(genEdgeRule(), 0, 4).Draw(t, "allow") {
			if r.checkAllow() == nil {
				p.Allow = append(p.Allow, r)
			}
		}
		return p
	})
}

func genEdgeName() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "corp.example", "db.corp.example", "a.db.corp.example", "web.example", "other.test"})
}

// TestWithinIsBoth holds that a policy within others allows what all of them allow: none
// widens another, and a deny of any wins.
func TestWithinIsBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		document, host, third := genEdgePolicy().Draw(t, "document"), genEdgePolicy().Draw(t, "host"), genEdgePolicy().Draw(t, "third")
		host.Whose = "the host"
		both := document
		both.Within = []Policy{host}
		if rapid.Bool().Draw(t, "nested") {
			both.Within[0].Within = []Policy{third}
		} else {
			both.Within = append(both.Within, third)
		}
		alone := []*judge{newJudge(document, edgeIsOwn), newJudge(host, edgeIsOwn), newJudge(third, edgeIsOwn)}
		j := newJudge(both, edgeIsOwn)
		name, addr, port := genEdgeName().Draw(t, "name"), genEdgeAddr().Draw(t, "address"), rapid.SampledFrom(edgePorts).Draw(t, "port")
		agree := func(what string, got Verdict, ask func(*judge) Verdict) {
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
		agree("the connection", j.decide(name, addr, port), func(a *judge) Verdict { return a.decide(name, addr, port) })
		agree("the answer", j.answer(name, addr), func(a *judge) Verdict { return a.answer(name, addr) })
		agree("the lookup", j.lookup(name), func(a *judge) Verdict { return a.lookup(name) })

		// What the connection's first packet and first bytes are let do, each policy lets them.
		names := rapid.SliceOfNDistinct(genEdgeName().Filter(func(s string) bool { return s != "" }), 0, 3, rapid.ID).Draw(t, "names")
		to, protocol := netip.AddrPortFrom(addr, port), rapid.SampledFrom([]string{"tcp", "udp"}).Draw(t, "protocol")
		known := newNames(10, time.Hour)
		for _, n := range names {
			known.add(addr, n)
		}
		g := greeting{protocol: rapid.SampledFrom([]greetingProtocol{silent, partial, unknown, isTLS, isHTTP}).Draw(t, "spoken")}
		if g.protocol == isTLS || g.protocol == isHTTP {
			g.name = name
		}
		_, opened := j.connect(protocol, to, names)
		greeted := j.check(to, names).greeting(g, known) == ""
		for i, a := range alone {
			if r, ok := a.connect(protocol, to, names); opened && !ok {
				t.Fatalf("%s %s %q is open, and policy %d says %q", protocol, to, names, i, r.Reason)
			}
			if reason := a.check(to, names).greeting(g, known); greeted && reason != "" {
				t.Fatalf("%+v at %s %q is let through, and policy %d says %q", g, to, names, i, reason)
			}
		}
		if j.loopback() && (!alone[0].loopback() || !alone[1].loopback()) {
			t.Fatal("a port of the loopback that not all of them open")
		}
	})
}

// TestMayOpen holds that a rule that is refused early opens nothing.
func TestMayOpen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host, rule := genEdgePolicy().Draw(t, "host"), genEdgeRule().Draw(t, "rule")
		if rule.checkAllow() != nil || host.MayOpen(rule) {
			return
		}
		j := newJudge(Policy{Only: true, Allow: []Rule{rule}, Within: []Policy{host}}, edgeIsOwn)
		addr, name := genEdgeAddr().Draw(t, "address"), genEdgeName().Draw(t, "name")
		if rule.Prefix.IsValid() && rapid.Bool().Draw(t, "first") {
			addr = rule.Prefix.Addr()
		}
		for _, port := range append(edgePorts, rule.Port) {
			if v := j.decide(name, addr, port); v.Allowed && (name == "" || j.lookup(name).Allowed || rule.Name == "") {
				t.Fatalf("%s is refused, and opens %q %s:%d", rule, name, addr, port)
			}
		}
	})
	open, corp, proxy := Policy{}, Policy{Only: true, Allow: rules(t, "*.corp.example", "10.0.0.0/8")}, Policy{Only: true, Allow: rules(t, "10.1.2.3:3128")}
	for _, c := range []struct {
		p    Policy
		rule string
		want bool
	}{
		{open, "10.0.0.5", false}, {open, "169.254.169.254", false}, {open, "127.0.0.1:80", false}, {open, "db.corp.example", true}, {open, "8.8.8.8", true}, {open, "0.0.0.0/0", true},
		{corp, "db.corp.example", true}, {corp, "*.example", true}, {corp, "web.example", false}, {corp, "10.0.0.5", true}, {corp, "169.254.169.254", false}, {corp, "127.0.0.1:6379", false},
		{proxy, "10.1.2.3", true}, {proxy, "10.1.2.3:80", false}, {proxy, "10.0.0.0/8", true}, {proxy, "web.example", false}, {Policy{Within: []Policy{proxy}}, "8.8.8.8", false},
	} {
		if got := c.p.MayOpen(rules(t, c.rule)[0]); got != c.want {
			t.Errorf("%+v: %s: %v", c.p, c.rule, got)
		}
	}
}

// TestOwnServices holds that what the caller itself serves is reached whatever is denied, and
// nothing beside it.
func TestOwnServices(t *testing.T) {
	own := rules(t, "127.0.0.1:4000")
	p := Policy{Only: true, Own: own, Deny: rules(t, "0.0.0.0/0"), Within: []Policy{{Only: true, Own: rules(t, "127.0.0.1:4001")}}}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	j, gateway := newJudge(p, edgeIsOwn), netip.MustParseAddr(Gateway)
	for port, want := range map[uint16]bool{4000: true, 4001: false, 22: false} {
		if got := j.decide("", gateway, port).Allowed; got != want {
			t.Errorf("port %d: %v", port, got)
		}
	}
	if !j.loopback() || j.decide("", netip.MustParseAddr("8.8.8.8"), 4000).Allowed {
		t.Error("not the one service alone")
	}
	for _, bad := range []string{"127.0.0.1", "a.example:80", "10.0.0.0/8:80"} {
		if (Policy{Own: rules(t, bad)}).Validate() == nil {
			t.Errorf("%s is a service", bad)
		}
	}
	deep := Policy{}
	for range maxWithin + 1 {
		deep = Policy{Within: []Policy{deep}}
	}
	if deep.Validate() == nil {
		t.Error("any depth will do")
	}
}

// TestStackWithin holds that a stack whose policy is within the host's reaches nothing that one
// with the host's alone does not, by what names were answered, and by what was dialed.
func TestStackWithin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		document, host := genEdgePolicy().Draw(rt, "document"), genEdgePolicy().Draw(rt, "host")
		both := document
		both.Within = []Policy{host}
		answers := map[string]string{}
		for _, n := range []string{"corp.example", "db.corp.example", "web.example"} {
			answers[n] = rapid.SampledFrom(edgeAddrs[:len(edgeAddrs)-5]).Draw(rt, n)
		}
		port := rapid.SampledFrom(edgePorts).Draw(rt, "port")
		says := rapid.SampledFrom([]string{"corp.example", "db.corp.example", "web.example", ""}).Draw(rt, "greeting")
		reach := func(p Policy) (all []string) {
			w := newWorld(t, Options{Policy: p}, func(l *limits) { l.hello = 50 * time.Millisecond })
			defer w.stack.Close()
			hello := []byte("anything\n")
			if says != "" {
				hello = httpRequest(says)
			}
			for name, a := range answers {
				w.host.name(name, a)
				w.host.listen(fmt.Sprintf("%s:%d", a, port), func(c net.Conn) {
					defer c.Close()
					if n, _ := c.Read(make([]byte, 1)); n == 1 {
						_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
					}
				})
			}
			for name := range answers {
				for _, a := range addresses(w.ask(name, dnsmessage.TypeA)) {
					all = append(all, "answer "+name+" "+a)
				}
			}
			for _, a := range answers {
				if strings.HasPrefix(a, "127.") {
					continue // the guest's own loopback
				}
				to := fmt.Sprintf("%s:%d", a, port)
				c, err := w.dial(to)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				_, _ = c.Write(hello)
				b, _ := io.ReadAll(c)
				if strings.Contains(string(b), " 200 ") {
					all = append(all, "served "+to)
				}
				_ = c.Close()
			}
			for _, d := range w.host.dials() {
				all = append(all, "dial "+d)
			}
			return all
		}
		alone := reach(host)
		for _, what := range reach(both) {
			if !slices.Contains(alone, what) {
				rt.Fatalf("%s, which the host alone does not let: %q", what, alone)
			}
		}
	})
}
