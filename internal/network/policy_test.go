package network

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

func ParseRules(tb testing.TB, texts ...string) []Rule {
	tb.Helper()
	var out []Rule
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestParseRule(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"api.example.com", "api.example.com"},
		{"API.Example.com.", "api.example.com"},
		{"*.example.org:443", "*.example.org:443"},
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"10.0.0.0/8:22", "10.0.0.0/8:22"},
		{"192.0.2.1:5432", "192.0.2.1:5432"},
		{"192.0.2.1", "192.0.2.1"},
		{"2001:db8::1", "2001:db8::1"},
		{"2001:db8::/32", "2001:db8::/32"},
		{"[2001:db8::1]:80", "[2001:db8::1]:80"},
		{"[2001:db8::/32]:80", "[2001:db8::/32]:80"},
		{"[::1]", "::1"},
		{"::ffff:192.0.2.1", "192.0.2.1"},
		{"::ffff:10.0.0.0/104", "10.0.0.0/8"},
		{"localhost:80", "localhost:80"},
		{"_srv.x-y.example", "_srv.x-y.example"},
		{"0x.example", "0x.example"},
	} {
		r, err := ParseRule(c.in)
		if err != nil || r.String() != c.out {
			t.Errorf("%s: %s, %v", c.in, r, err)
		}
		if again, err := ParseRule(r.String()); err != nil || again != r {
			t.Errorf("%s: %+v is not %+v: %v", c.in, again, r, err)
		}
	}
	for _, in := range []string{
		"", ":", ":80", "a..b", "a b", "http://a.example", "a.example/path", "*", "*.",
		"a.*.example", "*a.example", "*.*.example",
		"a.example:", "a.example:0", "a.example:65536", "a.example:http", "a.example:+1",
		"a.example:-1",
		"10.0.0.1/8", "10.0.0.0/33", "10.0.0", "127.1", "0x7f000001", "2130706433", "1.2.3.4.5",
		"256.1.1.1", "01.2.3.4", "a.1", "*.4",
		"fe80::1%eth0", "[::1", "[::1]80", "[::1]:x", "::1]:80", "bücher.example", "a\x00b",
		strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "a",
	} {
		if r, err := ParseRule(in); err == nil {
			t.Errorf("%q is %+v", in, r)
		} else if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v has no kind or hint", in, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, ok := range []string{"127.0.0.1:8080", "169.254.169.254", "10.0.0.0/8", "0.0.0.0/0",
		"10.0.2.0/23", "8.8.8.8:53", "localhost"} {
		if err := (Policy{Allow: ParseRules(t, ok)}).Validate(); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"127.0.0.1", "127.0.0.2:80", "127.0.0.0/8", "::1", "[::1]:80",
		"224.0.0.1", "255.255.255.255", "240.0.0.0/4",
		"0.0.0.0/8", "10.0.2.0/24", "10.0.2.2:80", "2001:db8::/32", "::/0", HostName,
		HostName + ":80"} {
		if err := (Policy{Allow: ParseRules(t, bad)}).Validate(); err == nil ||
			turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, ok := range []string{"::/0", "127.0.0.0/8", "224.0.0.0/4"} {
		if err := (Policy{Deny: ParseRules(t, ok)}).Validate(); err != nil {
			t.Errorf("deny %s: %v", ok, err)
		}
	}
	if err := (Policy{Deny: []Rule{{}}}).Validate(); err == nil {
		t.Error("an empty rule")
	}
	if err := (Policy{Deny: make([]Rule, maxRules+1)}).Validate(); err == nil {
		t.Error("too many rules")
	}
}

func TestDecide(t *testing.T) {
	on := Policy{}
	only := Policy{Only: true, Allow: ParseRules(t, "api.example.com", "*.example.org:443",
		"10.0.0.0/8", "192.0.2.1:5432", "127.0.0.1:8080")}
	all := Policy{Only: true, Allow: ParseRules(t, "0.0.0.0/0")}
	open := Policy{Allow: ParseRules(t, "db.corp.example", "*.wild.example", "169.254.169.254:80",
		"192.168.0.0/16")}
	deny := Policy{Allow: ParseRules(t, "10.0.0.0/8", "127.0.0.1:8080"),
		Deny: ParseRules(t, "bad.example", "*.bad.example:443", "8.8.8.8", "10.1.0.0/16",
			"2002:0808:0808::/48")}
	for _, c := range []struct {
		what   string
		p      Policy
		name   string
		addr   string
		port   uint16
		reason string // empty: allowed
	}{
		{"on", on, "", "8.8.8.8", 443, ""},
		{"on", on, "dns.google", "8.8.8.8", 443, ""},
		{"on", on, "", "2001:4860:4860::8888", 443, ""},
		{"on", on, "", "127.0.0.1", 80, "loopback address"},
		{"on", on, "", "127.255.255.254", 80, "loopback address"},
		{"on", on, "", "10.0.2.2", 80, "loopback address"},
		{"on", on, "", "10.0.2.3", 80, "not a service of the name server"},
		{"on", on, "", "10.0.2.15", 80, "private address"},
		{"on", on, "", "10.1.2.3", 80, "private address"},
		{"on", on, "", "172.16.0.1", 80, "private address"},
		{"on", on, "", "172.32.0.1", 80, ""},
		{"on", on, "", "192.168.1.1", 80, "private address"},
		{"on", on, "", "100.64.0.1", 80, "private address"},
		{"on", on, "", "100.128.0.1", 80, ""},
		{"on", on, "", "100.100.100.200", 80, "metadata address"},
		{"on", on, "", "169.254.169.254", 80, "metadata address"},
		{"on", on, "", "168.63.129.16", 80, "metadata address"},
		{"on", on, "", "169.254.1.1", 80, "link-local address"},
		{"on", on, "", "198.18.0.1", 80, "reserved address"},
		{"on", on, "", "0.0.0.0", 80, "address of no host"},
		{"on", on, "", "0.1.2.3", 80, "address of no host"},
		{"on", on, "", "224.0.0.1", 80, "multicast address"},
		{"on", on, "", "255.255.255.255", 80, "broadcast address"},
		{"on", on, "", "240.0.0.1", 80, "reserved address"},
		{"on", on, "", "::", 80, "address of no host"},
		{"on", on, "", "::1", 80, "loopback address"},
		{"on", on, "", "fd00:ec2::254", 80, "metadata address"},
		{"on", on, "", "fd12::1", 80, "private address"},
		{"on", on, "", "fe80::1", 80, "link-local address"},
		{"on", on, "", "fe80::1%eth0", 80, "link-local address"},
		{"on", on, "", "ff02::1", 80, "multicast address"},
		{"on", on, "", "4000::1", 80, "reserved address"},
		{"on", on, "", "2001::1", 80, "reserved address"},
		{"mapped", on, "", "::ffff:127.0.0.1", 80, "loopback address"},
		{"mapped", on, "", "::ffff:8.8.8.8", 80, ""},
		{"compatible", on, "", "::10.0.0.1", 80, "private address"},
		{"NAT64", on, "", "64:ff9b::169.254.169.254", 80, "metadata address"},
		{"NAT64", on, "", "64:ff9b::10.0.0.1", 80, "private address"},
		{"local NAT64", on, "", "64:ff9b:1::10.0.0.1", 80, "reserved address"},
		{"6to4", on, "", "2002:7f00:1::", 80, "loopback address"},

		{"only", only, "", "8.8.8.8", 443, "not in allow"},
		{"only", only, "api.example.com", "8.8.8.8", 443, ""},
		{"only", only, "x.api.example.com", "8.8.8.8", 443, "not in allow"},
		{"only", only, "xapi.example.com", "8.8.8.8", 443, "not in allow"},
		{"only", only, "a.example.org", "8.8.8.8", 443, ""},
		{"only", only, "a.b.example.org", "8.8.8.8", 443, ""},
		{"only", only, "a.example.org", "8.8.8.8", 80, "not in allow"},
		{"only", only, "example.org", "8.8.8.8", 443, "not in allow"},
		{"only", only, "badexample.org", "8.8.8.8", 443, "not in allow"},
		{"only", only, "", "10.9.8.7", 22, ""},
		{"only", only, "", "192.0.2.1", 5432, ""},
		{"only", only, "", "192.0.2.1", 5433, "not in allow"},
		{"only", only, "", "10.0.2.2", 8080, ""},
		{"only", only, "", "10.0.2.2", 8081, "loopback address"},
		{"only", only, "a.example.org", "169.254.169.254", 443, "metadata address"},

		{"all", all, "", "8.8.8.8", 443, ""},
		{"all", all, "", "10.0.0.1", 443, "private address"},
		{"all", all, "", "169.254.169.254", 80, "metadata address"},

		{"open", open, "db.corp.example", "10.0.0.1", 5432, ""},
		{"open", open, "db.corp.example", "fd12::1", 5432, ""},
		{"open", open, "db.corp.example", "127.0.0.1", 5432, "loopback address"},
		{"open", open, "db.corp.example", "169.254.169.254", 80, ""},
		{"open", open, "db.corp.example", "169.254.169.254", 81, "metadata address"},
		{"open", open, "db.corp.example", "169.254.1.1", 80, "link-local address"},
		{"open", open, "a.wild.example", "10.0.0.1", 5432, "private address"},
		{"open", open, "a.wild.example", "8.8.8.8", 5432, ""},
		{"open", open, "", "192.168.3.4", 1, ""},
		{"open", open, "", "8.8.8.8", 443, ""},

		{"deny", deny, "bad.example", "1.2.3.4", 80, "in deny: bad.example"},
		{"deny", deny, "a.bad.example", "1.2.3.4", 443, "in deny: *.bad.example:443"},
		{"deny", deny, "a.bad.example", "1.2.3.4", 80, ""},
		{"deny", deny, "", "8.8.8.8", 53, "in deny: 8.8.8.8"},
		{"deny", deny, "", "::ffff:8.8.8.8", 53, "in deny: 8.8.8.8"},
		{"deny", deny, "", "10.2.0.1", 53, ""},
		{"deny", deny, "", "10.1.0.1", 53, "in deny: 10.1.0.0/16"},
		{"deny", deny, "", "10.0.2.2", 8080, ""},
		{"deny", deny, "", "2002:808:808::1", 80, "in deny: 8.8.8.8"},
	} {
		v := c.p.Decide(c.name, netip.MustParseAddr(c.addr), c.port)
		if v.Allowed != (c.reason == "") || v.Reason != c.reason {
			t.Errorf("%s: %q %s port %d: %+v, want %q", c.what, c.name, c.addr, c.port, v, c.reason)
		}
	}
	if (Policy{}).Decide("", netip.Addr{}, 80).Allowed {
		t.Error("no address")
	}
}

func TestLookupAndAnswer(t *testing.T) {
	own := netip.MustParseAddr("198.51.100.77")
	j := NewJudge(Policy{Only: true, Allow: ParseRules(t, "api.example.com:443", "*.example.org",
		"10.0.0.0/8", "127.0.0.1:80"),
		Deny: ParseRules(t, "no.example.org", "port.example.org:80", "9.9.9.9")},
		func(a netip.Addr) bool { return a == own })
	for name, want := range map[string]bool{"api.example.com": true, "a.example.org": true,
		"example.org": false, "no.example.org": false,
		"port.example.org": true, "other.example": false, "a.no.example.org": true} {
		if v := j.Lookup(name); v.Allowed != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for _, c := range []struct {
		name, addr string
		want       bool
	}{
		{"api.example.com", "8.8.8.8", true}, {"api.example.com", "192.168.0.1", true},
		{"a.example.org", "192.168.0.1", false},
		{"a.example.org", "10.0.0.1", true}, {"api.example.com", "127.0.0.1", false},
		{"api.example.com", "169.254.169.254", false},
		{"api.example.com", "198.51.100.77", false}, {"api.example.com", "9.9.9.9", false},
		{"api.example.com", "0.0.0.0", false},
		{"api.example.com", "::ffff:127.0.0.1", false},
	} {
		if v := j.Answer(c.name, netip.MustParseAddr(c.addr)); v.Allowed != c.want {
			t.Errorf("%s %s: %+v", c.name, c.addr, v)
		}
	}
	// Only the exact address opens the host's own.
	if NewJudge(Policy{Allow: ParseRules(t, "198.51.100.0/24")}, j.isOwn).decide("", own,
		80).Allowed {
		t.Error("a prefix opened the host")
	}
	if !NewJudge(Policy{Allow: ParseRules(t, "198.51.100.77:80")}, j.isOwn).decide("", own,
		80).Allowed {
		t.Error("its own address did not open the host")
	}
}

// Decide is decide for the tests in package network_test.
func (j *Judge) Decide(name string, addr netip.Addr, port uint16) Verdict {
	return j.decide(name, addr, port)
}

// MaxWithin is maxWithin for the tests in package network_test.
const MaxWithin = maxWithin

func GenAddr() *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		if rapid.Bool().Draw(t, "special") {
			k := rapid.SampledFrom(kinds()).Draw(t, "kind").prefix
			b := k.Addr().AsSlice()
			for i := k.Bits(); i < len(b)*8; i++ {
				if rapid.Bool().Draw(t, "bit") {
					b[i/8] |= 0x80 >> (i % 8)
				}
			}
			a, _ := netip.AddrFromSlice(b)
			return a
		}
		if rapid.Bool().Draw(t, "v4") {
			return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr")))
		}
		return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "addr")))
	})
}

func genName() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "example.com", "a.example.com", "b.a.example.com",
		"example.org", "x.example.org"})
}

func genRule() *rapid.Generator[Rule] {
	return rapid.Custom(func(t *rapid.T) Rule {
		r := Rule{Port: rapid.SampledFrom([]uint16{0, 0, 53, 80, 443}).Draw(t, "port")}
		if rapid.Bool().Draw(t, "name") {
			r.Name = rapid.SampledFrom([]string{"example.com", "*.example.com", "a.example.com",
				"*.example.org"}).Draw(t, "name")
			return r
		}
		a := GenAddr().Draw(t, "prefix")
		r.Prefix = unmapPrefix(netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t,
			"bits")).Masked())
		return r
	})
}

func genPolicy() *rapid.Generator[Policy] {
	return rapid.Custom(func(t *rapid.T) Policy {
		return Policy{Only: rapid.Bool().Draw(t, "only"),
			Allow: rapid.SliceOfN(genRule(), 0, 4).Draw(t, "allow"), Deny: rapid.SliceOfN(genRule(),
				0, 2).Draw(t, "deny")}
	})
}

func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, name, addr := genPolicy().Draw(t, "policy"), genName().Draw(t, "host"),
			GenAddr().Draw(t, "address")
		port := rapid.SampledFrom([]uint16{53, 80, 443, 8080}).Draw(t, "to")
		v := p.Decide(name, addr, port)
		if v.Allowed == (v.Reason != "") {
			t.Fatalf("%+v", v)
		}
		// A wrapped address is treated as the address that it wraps.
		if addr.Is4() {
			if w := p.Decide(name, netip.AddrFrom16(addr.As16()), port); w.Allowed != v.Allowed &&
				addr.String() != Gateway && addr.String() != DNS {
				t.Fatalf("mapped: %+v, not %+v", w, v)
			}
		}
		// An additional deny opens nothing, an additional allow closes nothing.
		more := p
		more.Deny = append(more.Deny[:len(more.Deny):len(more.Deny)], genRule().Draw(t, "more"))
		if w := more.Decide(name, addr, port); w.Allowed && !v.Allowed {
			t.Fatalf("deny %s opened it", more.Deny[len(more.Deny)-1])
		}
		more = p
		more.Allow = append(more.Allow[:len(more.Allow):len(more.Allow)], genRule().Draw(t, "more"))
		if w := more.Decide(name, addr, port); !w.Allowed && v.Allowed {
			t.Fatalf("allow %s closed it", more.Allow[len(more.Allow)-1])
		}
		// An address that is not public is open only by a rule in its range or, if it is private,
		// by an exact name.
		k := NewJudge(p, func(netip.Addr) bool { return false }).kindOf(Embedded(addr))
		if v.Allowed && k.class != public {
			opened := false
			for _, r := range p.Allow {
				opened = opened || r.Name == "" && r.Prefix.Bits() >= k.prefix.Bits() &&
					k.prefix.Contains(r.Prefix.Addr()) ||
					r.Name == name && name != "" && k.class == private
			}
			if !opened || k.class == never {
				t.Fatalf("%s (%s) is open: %+v", addr, k.word, v)
			}
		}
		// With only, a rule in allow must be the reason.
		if p.Only && v.Allowed && v.Rule == "" {
			t.Fatal("open without a rule")
		}
	})
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"api.example.com", "*.example.org:443", "10.0.0.0/8",
		"[2001:db8::/32]:80", "192.0.2.1:5432", "::ffff:1.2.3.4/100", "0x7f.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again != r {
			t.Fatalf("%q: %s: %+v, %v", s, r, again, err)
		}
		if (r.Name == "") != r.Prefix.IsValid() {
			t.Fatalf("%+v", r)
		}
		_ = Policy{Allow: []Rule{r}}.Validate()
		_ = Policy{Allow: []Rule{r}}.Decide("a.example", netip.MustParseAddr("10.0.0.1"), 80)
	})
}
