package plan

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network"
)

// planned returns the policy of a request on a host with this configuration.
func planned(t interface {
	Helper()
	Fatal(...any)
}, configuration string, req Request) network.Policy {
	t.Helper()
	host, err := config.Parse(configuration)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ofTurn(req, "/workspace", false)
	if err != nil {
		t.Fatal(err)
	}
	p.Host.Config = host
	p.authority = &Authority{Request: req, Host: p.Host}
	if err := p.planNetwork(req); err != nil {
		t.Fatal(err)
	}
	return p.Net.Policy
}

// The DNS decides the addresses of a name, so a document's rule with a name does not open a private
// address.
func TestDocumentsNamesArePublic(t *testing.T) {
	doc := parse(t, "---\nnetwork: {allow: [db.corp.example]}\n---\n")
	private, public := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("192.0.2.3")
	for name, c := range map[string]struct {
		req    Request
		config string
		opens  bool
	}{
		"asked":       {req: Request{}},
		"granted":     {req: Request{Grant: []string{"network"}}, opens: true},
		"by the host": {config: "[documents]\ngrant = [\"network\"]", opens: true},
		"by the caller's rule": {req: Request{NetworkRules: &document.NetworkRules{HasAllow: true,
			Allow: []string{"db.corp.example"}}}, opens: true},
		"by the host's address": {config: "[documents]\nallow = [\"10.0.0.0/8\"]", opens: true},
		"by the host's name":    {config: "[network]\nallow = [\"db.corp.example\"]", opens: true},
		"by another name":       {config: "[documents]\nallow = [\"other.corp.example\"]"},
	} {
		c.req.Document = doc
		policy := planned(t, c.config, c.req)
		v := policy.Decide("db.corp.example", private, 5432)
		if v.Allowed != c.opens ||
			!c.opens && v.Reason != "not granted to the document: private address" {
			t.Errorf("%s: %+v, want %v", name, v, c.opens)
		}
		if v := policy.Decide("db.corp.example", public, 5432); !v.Allowed {
			t.Errorf("%s: its public address is refused: %+v", name, v)
		}
		if v := policy.Decide("other.example", public, 5432); v.Allowed {
			t.Errorf("%s: what it does not name is allowed", name)
		}
	}
}

// TestDocumentsNeverOpen checks that the rules of a document without grants reach only public
// addresses, and addresses that the host grants to documents.
func TestDocumentsNeverOpen(t *testing.T) {
	rules := []string{"10.0.0.0/8", "10.1.2.3", "127.0.0.1:80", "a.example", "a.example:80",
		"*.example", "192.0.2.0/24", "public", "169.254.169.254", "0.0.0.0/0", "172.16.0.0/12:80"}
	addresses := []string{"10.1.2.3", "10.0.2.2", "127.0.0.1", "169.254.169.254", "172.16.9.9",
		"192.0.2.9", "198.51.100.1", "192.168.1.1", "::ffff:10.1.2.3"}
	rapid.Check(t, func(t *rapid.T) {
		front := document.FrontMatter{NetworkRules: &document.NetworkRules{HasAllow: true,
			Allow: rapid.SliceOfN(rapid.SampledFrom(rules), 0, 4).Draw(t, "document")}}
		given := rapid.SampledFrom([]string{"", "[documents]\nallow = [\"10.1.0.0/16:80\"]",
			"[network]\nallow = [\"172.16.0.0/12\"]"}).Draw(t, "host")
		host, err := config.Parse(given)
		if err != nil {
			t.Fatal(err)
		}
		limit, err := netplan.DocumentsPolicy(host)
		if err != nil {
			t.Fatal(err)
		}
		policy := planned(t, given,
			Request{Document: &document.Document{Name: "doc", Front: front}})
		name := rapid.SampledFrom([]string{"", "a.example", "b.example"}).Draw(t, "name")
		at := netip.MustParseAddr(rapid.SampledFrom(addresses).Draw(t, "address"))
		port := rapid.SampledFrom([]uint16{80, 443}).Draw(t, "port")
		if policy.Decide(name, at, port).Allowed && !limit.Decide(name, at, port).Allowed {
			t.Fatalf("%v with %q reaches %s %s:%d", front.NetworkRules.Allow, given, name, at, port)
		}
	})
}
