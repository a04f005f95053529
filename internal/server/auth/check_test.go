package auth

import (
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestScopes(t *testing.T) {
	for _, c := range []struct {
		have, need Scope
		want       bool
	}{
		{"turns:run", TurnsRun, true},
		{"turns:*", TurnsRun, true},
		{"turns:*", SandboxesRead, false},
		{"sandboxes:read", SandboxesCreate, false},
		{"*:*", TurnsRun, false},
		{"*", TurnsRun, false},
		{"turns", TurnsRun, false},
		{"turns:", TurnsRun, false},
		{"turns:r*", TurnsRun, false},
		{"", "", false},
		{"unheard:of", "unheard:of", false},
		{"unheard:*", "unheard:of", false},
		{"turns:*", "turns:fly", false},
		{"sandboxes:*", SandboxesManage, false},
		{"sandboxes:manage", SandboxesManage, true},
	} {
		if got := c.have.Covers(c.need); got != c.want {
			t.Errorf("%q covers %q: %v", c.have, c.need, got)
		}
	}
	if _, err := ParseScopes([]string{"turns:run", "turns:fly"}); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Errorf("an unknown scope: %v", err)
	}
	_, err := ParseScopes([]string{"turn:runs"})
	if h := turnstone.HintOf(err); !strings.HasPrefix(h, "did you mean turns:run, ") {
		t.Errorf("the hint is %q", h)
	}
	for _, s := range Scopes() {
		if !Operator("root").Has(s) {
			t.Errorf("the operator does not have %s", s)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern Pattern
		name    string
		want    bool
	}{
		{"*", "docker.io/library/python", true},
		{"ci-*", "ci-1", true},
		{"ci-*", "ci-1/x", false},
		{"ci-*", "xci-1", false},
		{"research", "research", true},
		{"research", "Research", false},
		{"[", "[", false},
	} {
		if got := c.pattern.Match(c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}

const (
	box   = turnstone.SandboxID("sb_0123456789abcdefgh")
	other = turnstone.SandboxID("sb_hgfedcba9876543210")
)

func someone() Principal {
	return Principal{Tenant: "acme", Subject: "ci", Scopes: []Scope{TurnsRun, "sandboxes:*"},
		Sessions: []Pattern{"research", "ci-*"}, Templates: []Pattern{"python"}}
}

// TestDefaultDeny: an empty principal may nothing, and each missing right denies on its own.
func TestDefaultDeny(t *testing.T) {
	for _, s := range append(Scopes(), "", "*", "*:*") {
		if (Principal{}).Allow(Request{Scope: s}) == nil {
			t.Errorf("nobody may %q", s)
		}
	}
	if (Principal{}).Sees(Owner{}) || someone().Sees(Owner{}) {
		t.Error("an object of nobody is seen")
	}
	p := someone()
	check(t, p.Allow(Request{Scope: TurnsRun, Session: "research", Template: "python"}))
	for _, r := range []Request{
		{},
		{Scope: SessionsRead},
		{Scope: TurnsRead, Session: "research"},
		{Scope: TurnsRun, Session: "secret"},
		{Scope: TurnsRun, Session: "ci-1/../secret"},
		{Scope: TurnsRun, Session: "research", Template: "nodejs"},
	} {
		if err := p.Allow(r); ReasonOf(err) != Denied {
			t.Errorf("%+v: %v", r, err)
		}
	}
	p.Sessions, p.Templates = nil, nil
	for _, r := range []Request{{Scope: TurnsRun, Session: "research"},
		{Scope: TurnsRun, Template: "python"}} {
		if err := p.Allow(r); ReasonOf(err) != Denied {
			t.Errorf("%+v without patterns: %v", r, err)
		}
	}
}

// TestOtherTenant: an object of another tenant, and one that the caller's patterns leave out,
// answer as one that does not exist: the same error, and the same work.
func TestOtherTenant(t *testing.T) {
	p := someone()
	r := Request{Scope: SandboxesRead, Sandbox: box}
	check(t, p.Check(r, string(box), Owner{Tenant: "acme", Sandbox: box}))
	check(t, p.Check(r, string(box), Owner{Tenant: "acme", Session: "research", Sandbox: box}))
	hidden := []Owner{
		{}, // does not exist
		{Tenant: "other", Sandbox: box},
		{Tenant: "acme2", Session: "research", Sandbox: box},
		{Tenant: "ACME", Session: "research", Sandbox: box},
		{Tenant: "acme", Session: "secret", Sandbox: box},
		{Tenant: "acme", Template: "nodejs", Sandbox: box},
	}
	var text string
	var work float64
	for i, o := range hidden {
		err := p.Check(r, string(box), o)
		if turnstone.KindOf(err) != turnstone.KindNotFound || ReasonOf(err) != "" {
			t.Fatalf("%+v: %v", o, err)
		}
		words := err.Error() + turnstone.HintOf(err)
		allocations := testing.AllocsPerRun(100, func() { p.Sees(o) })
		if i == 0 {
			text, work = words, allocations
		}
		if words != text || allocations != work {
			t.Errorf("%+v: %q with %v allocations; what does not exist: %q with %v", o, words,
				allocations, text, work)
		}
	}
	nobody := someone()
	nobody.Tenant = ""
	if nobody.Sees(Owner{}) {
		t.Error("a principal without a tenant sees an object without one")
	}
}

// TestOtherSandbox: a token of one sandbox opens nothing else, whether the other one exists or not.
func TestOtherSandbox(t *testing.T) {
	s := newSetup(t)
	c := s.usual()
	c.Sandbox, c.Scopes = box, []Scope{SandboxesConnect, "turns:*"}
	p := s.accepted(t, s.issue(t, c).Token.Reveal())
	check(t, p.Check(Request{Scope: SandboxesConnect, Sandbox: box}, string(box),
		Owner{Tenant: "acme", Sandbox: box}))
	for _, o := range []Owner{{}, {Tenant: "acme", Sandbox: other}} {
		err := p.Check(Request{Scope: SandboxesConnect, Sandbox: other}, string(other), o)
		if ReasonOf(err) != Denied {
			t.Errorf("%+v: %v", o, err)
		}
	}
	// Requests about no sandbox: a list, a turn.
	for _, r := range []Request{{Scope: TurnsRun, Session: "research"}, {Scope: SandboxesConnect}} {
		if err := p.Allow(r); ReasonOf(err) != Denied {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if p.Sees(Owner{Tenant: "acme"}) || p.Sees(Owner{Tenant: "acme", Sandbox: other}) {
		t.Error("the token of a sandbox sees other objects")
	}
}

// TestForSandbox: the token of a new sandbox opens it and nothing else, and grants nothing that its
// maker does not have.
func TestForSandbox(t *testing.T) {
	s := newSetup(t)
	maker := someone()
	maker.Scopes, maker.Sessions = []Scope{"sandboxes:*"}, []Pattern{"ci-*"}
	maker.Templates, maker.Expires = []Pattern{"py*"}, s.time.wallTime().Add(30*time.Minute)
	c, ok := maker.ForSandbox(box, s.time.wallTime().Add(time.Hour))
	if !ok || !c.Expires.Equal(maker.Expires) {
		t.Errorf("%v, and it ends at %s", ok, c.Expires)
	}
	p := s.accepted(t, s.issue(t, c).Token.Reveal())
	for _, none := range []Owner{{Tenant: "acme", Session: "other", Sandbox: box},
		{Tenant: "acme", Template: "node", Sandbox: box}} {
		if p.Sees(none) {
			t.Errorf("it sees %+v, and its maker does not", none)
		}
	}
	half := maker
	half.Scopes = []Scope{SandboxesCreate, SandboxesRead}
	if c, ok := half.ForSandbox(box, maker.Expires); !ok || len(c.Scopes) != 1 ||
		c.Scopes[0] != SandboxesRead {
		t.Errorf("of a maker that may not connect: %v", c.Scopes)
	}
	half.Scopes = []Scope{SandboxesCreate}
	if _, ok := half.ForSandbox(box, maker.Expires); ok {
		t.Error("of a maker that may neither read nor connect")
	}
	half = maker
	half.Sandbox = other
	if _, ok := half.ForSandbox(box, maker.Expires); ok {
		t.Error("of a maker that is for another sandbox")
	}
	o := Owner{Tenant: "acme", Session: "ci-1", Template: "python", Sandbox: box}
	for _, scope := range []Scope{SandboxesConnect, SandboxesRead} {
		check(t, p.Check(Request{Scope: scope, Sandbox: box}, string(box), o))
	}
	for _, scope := range []Scope{SandboxesDelete, SandboxesCreate, TurnsRun, TokensIssue} {
		if p.Allow(Request{Scope: scope, Sandbox: box}) == nil {
			t.Errorf("it grants %s", scope)
		}
	}
	o.Tenant = "other"
	if p.Sees(o) {
		t.Error("it opens the sandbox of another tenant")
	}
}

// TestMayIssue: nobody hands out more than it has.
func TestMayIssue(t *testing.T) {
	s := newSetup(t)
	p := someone()
	p.Scopes = append(p.Scopes, TokensIssue)
	p.Expires = s.time.wallTime().Add(2 * 3600e9)
	mine := s.usual()
	mine.Templates = []Pattern{"python"}
	check(t, p.MayIssue(mine))
	for name, change := range map[string]func(*Claims, *Principal){
		"no right to issue": func(_ *Claims, p *Principal) { p.Scopes = someone().Scopes },
		"another tenant":    func(c *Claims, _ *Principal) { c.Tenant = "other" },
		"another scope":     func(c *Claims, _ *Principal) { c.Scopes = []Scope{SessionsRead} },
		"all of a service":  func(c *Claims, _ *Principal) { c.Scopes = []Scope{"turns:*"} },
		"unknown scope":     func(c *Claims, _ *Principal) { c.Scopes = []Scope{"unheard:*"} },
		"another session":   func(c *Claims, _ *Principal) { c.Sessions = []Pattern{"secret"} },
		"all sessions":      func(c *Claims, _ *Principal) { c.Sessions = []Pattern{"*"} },
		"wider pattern":     func(c *Claims, _ *Principal) { c.Sessions = []Pattern{"c*"} },
		"other pattern":     func(c *Claims, _ *Principal) { c.Sessions = []Pattern{"ci-?*"} },
		"another template":  func(c *Claims, _ *Principal) { c.Templates = []Pattern{"*"} },
		"longer":            func(c *Claims, p *Principal) { c.Expires = p.Expires.Add(1e9) },
		"another sandbox":   func(c *Claims, p *Principal) { p.Sandbox, c.Sandbox = box, other },
		"no sandbox":        func(_ *Claims, p *Principal) { p.Sandbox = box },
	} {
		c, q := mine, p
		change(&c, &q)
		if err := q.MayIssue(c); ReasonOf(err) != Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := mine
	c.Sessions, c.Sandbox = []Pattern{"ci-1", "ci-*"}, box
	check(t, p.MayIssue(c))
	c.Tenant, c.Scopes = "other", []Scope{"turns:*", "nodes:read"}
	check(t, Operator("root").MayIssue(c))
}
