package auth

import "testing"

// TestSucceeds: a token with tokens:renew makes one that is like it and ends later, and no other one.
func TestSucceeds(t *testing.T) {
	s := newSetup(t)
	p := someone()
	p.Issuer, p.Scopes = server, append(p.Scopes, TokensIssue, TokensRenew)
	p.Expires = s.time.wallTime().Add(3600e9)
	c := Claims{Tenant: p.Tenant, Subject: p.Subject, Scopes: p.Scopes, Sessions: p.Sessions, Templates: p.Templates,
		Sandbox: p.Sandbox, Expires: p.Expires.Add(3600e9)}
	if !p.Succeeds(server, c) {
		t.Fatal("a successor is refused")
	}
	c.Scopes = append([]Scope{TokensRenew}, c.Scopes...) // twice, and in another order
	if !p.Succeeds(server, c) {
		t.Error("the order of scopes counts")
	}
	for name, change := range map[string]func(*Claims, *Principal){
		"without the scope":     func(_ *Claims, p *Principal) { p.Scopes = append(someone().Scopes, TokensIssue) },
		"without tokens:issue":  func(_ *Claims, p *Principal) { p.Scopes = append(someone().Scopes, TokensRenew) },
		"with tokens:*":         func(_ *Claims, p *Principal) { p.Scopes = append(someone().Scopes, "tokens:*") },
		"another issuer's":      func(_ *Claims, p *Principal) { p.Issuer = "https://other.example" },
		"the operator":          func(_ *Claims, p *Principal) { *p = Operator("root") },
		"another tenant":        func(c *Claims, _ *Principal) { c.Tenant = "other" },
		"another subject":       func(c *Claims, _ *Principal) { c.Subject = "other" },
		"more scopes":           func(c *Claims, _ *Principal) { c.Scopes = append([]Scope{SessionsDelete}, c.Scopes...) },
		"fewer scopes":          func(c *Claims, _ *Principal) { c.Scopes = []Scope{TokensRenew} },
		"more sessions":         func(c *Claims, _ *Principal) { c.Sessions = []Pattern{Any} },
		"more templates":        func(c *Claims, _ *Principal) { c.Templates = []Pattern{"x", Any} },
		"without its sandbox":   func(_ *Claims, p *Principal) { p.Sandbox = box },
		"no later than the old": func(c *Claims, p *Principal) { c.Expires = p.Expires },
	} {
		d, q := c, p
		change(&d, &q)
		if q.Succeeds(server, d) {
			t.Errorf("%s: it succeeds", name)
		}
	}
}
