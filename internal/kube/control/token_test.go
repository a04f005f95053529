package control

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// ownToken replaces the operator's token by one that says this.
func ownToken(t *testing.T, c *Client, is claims) string {
	t.Helper()
	b, err := json.Marshal(is)
	must(t, err)
	token := "e30." + base64.RawURLEncoding.EncodeToString(b) + ".c2ln"
	must(t, os.WriteFile(c.o.TokenFile, []byte(token), 0o600))
	return token
}

func lived(ago, left time.Duration) claims {
	now := time.Now()
	return claims{Issued: float64(now.Add(-ago).Unix()), Expires: float64(now.Add(left).Unix()), Tenant: "local",
		Subject: "op", Scope: "tokens:issue tokens:renew sandboxes:read", Sessions: []string{"*"}}
}

// TestLife: a tenant's token is asked for less than the operator's has left, and no more is made with one
// that has ended; /readyz says so before the server is asked.
func TestLife(t *testing.T) {
	f := &fake{}
	c := f.client(t, t.TempDir())
	for _, tt := range []struct {
		left, most time.Duration
	}{
		{1000 * time.Hour, time.Hour},
		{2 * time.Hour, time.Hour},
		{time.Hour, 55 * time.Minute},
		{30 * time.Minute, 27 * time.Minute},
		{10 * time.Minute, 9 * time.Minute},
	} {
		ownToken(t, c, lived(time.Hour, tt.left))
		f.asked = nil
		c.all = map[string]*tenant{}
		if _, err := c.of(t.Context(), "a"); err != nil || len(f.asked) != 1 {
			t.Fatalf("%v: %v, %v", tt.left, err, f.asked)
		}
		if life := f.asked[0].Ttl.AsDuration(); life < tt.most/2 || life > tt.most {
			t.Errorf("with %v left it asks for %v", tt.left, life)
		}
		must(t, c.Check(t.Context()))
	}
	ownToken(t, c, lived(time.Hour, -time.Second))
	f.asked, c.all = nil, map[string]*tenant{}
	_, err := c.of(t.Context(), "a")
	if checked := c.Check(t.Context()); turnstone.KindOf(err) != turnstone.KindDenied || len(f.asked) != 0 ||
		turnstone.KindOf(checked) != turnstone.KindDenied || !strings.Contains(checked.Error(), "ended at") ||
		turnstone.HintOf(checked) == "" {
		t.Errorf("%v, %v, asked for %v", err, checked, f.asked)
	}
	// Of a token that does not say its end, such as another issuer's, the server knows it.
	must(t, os.WriteFile(c.o.TokenFile, []byte("opaque"), 0o600))
	_, err = c.of(t.Context(), "a")
	must(t, err)
	if life := f.asked[0].Ttl.AsDuration(); life != tokenLife {
		t.Errorf("it asks for %v", life)
	}
}

// TestSuccessor: when half of the life is over, a token that is like the old one is asked for, with the same
// life from now.
func TestSuccessor(t *testing.T) {
	f := &fake{}
	c := f.client(t, t.TempDir())
	ownToken(t, c, lived(9*time.Hour, 11*time.Hour))
	if old, next, err := c.Successor(t.Context()); old+next != "" || err != nil || f.asked != nil {
		t.Errorf("too early: %q, %q, %v", old, next, err)
	}
	token := ownToken(t, c, lived(11*time.Hour, 9*time.Hour))
	old, next, err := c.Successor(t.Context())
	if old != token || next != "token-of-local" || err != nil || len(f.asked) != 1 {
		t.Fatalf("%q, %q, %v", old, next, err)
	}
	if r := f.asked[0]; r.Subject != "op" || r.Tenant != "local" || r.Ttl.AsDuration() != 20*time.Hour ||
		!slices.Equal(r.Scopes, []string{"tokens:issue", "tokens:renew", "sandboxes:read"}) ||
		!slices.Equal(r.Sessions, []string{"*"}) || r.Templates != nil {
		t.Errorf("asked for %v", r)
	}
	is := lived(11*time.Hour, 9*time.Hour)
	is.Scope = "tokens:issue"
	ownToken(t, c, is)
	if _, _, err := c.Successor(t.Context()); turnstone.KindOf(err) != turnstone.KindDenied || !strings.Contains(err.Error(), "tokens:renew") {
		t.Error(err)
	}
}

// TestRoutes: a router's calls have a token of their own, which grants no more than they need.
func TestRoutes(t *testing.T) {
	f := &fake{}
	c := f.client(t, t.TempDir())
	_, err := c.List(t.Context(), "a", "x")
	must(t, err)
	_, err = c.Routes().List(t.Context(), "a", "x")
	must(t, err)
	if all, err := c.Tenants(t.Context()); err != nil || !slices.Equal(all, []string{"a"}) {
		t.Errorf("tokens were made for %v, %v", all, err)
	}
	if len(f.asked) != 2 || !slices.Equal(f.asked[1].Scopes, []string{"sandboxes:read", "sandboxes:connect"}) {
		t.Errorf("asked for %v", f.asked)
	}
}
