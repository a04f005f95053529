package auth

import (
	"strings"
	"testing"
	"time"
)

// TestDescendants: a revocation ends the tokens that were made with a token, those that were made
// with them, and those of sandboxes, also while they are in use. Others stay.
func TestDescendants(t *testing.T) {
	for _, byKey := range []bool{false, true} {
		s := newSetup(t)
		root := s.issue(t, s.usual())
		others := s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
		if byKey { // the others are signed with another key
			check(t, s.publisher.Rotate(t.Context(), time.Time{}))
			others = s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
		}
		all := []Principal{s.accepted(t, root.Token.Reveal())}
		var tokens []string
		for range 3 {
			c := s.usual()
			var err error
			c.Ancestors, err = all[len(all)-1].Lineage()
			check(t, err)
			token := s.issue(t, c).Token.Reveal()
			all, tokens = append(all, s.accepted(t, token)), append(tokens, token)
		}
		last := all[len(all)-1]
		last.Scopes = []Scope{SandboxesConnect}
		c, ok := last.ForSandbox(box, s.time.wallTime().Add(time.Hour))
		if !ok || len(c.Ancestors) != MaxAncestors {
			t.Fatalf("%v %v", ok, c.Ancestors)
		}
		token := s.issue(t, c).Token.Reveal()
		all, tokens = append(all, s.accepted(t, token)), append(tokens, token)
		r := Revocation{Issuer: server, TokenID: root.ID}
		if byKey {
			r = Revocation{Issuer: server, Key: root.Key}
		}
		check(t, s.publisher.Revoke(t.Context(), r))
		for i, token := range tokens {
			s.refused(t, token, Revoked)
			if err := s.verifier.Still(all[i+1]); ReasonOf(err) != Revoked {
				t.Errorf("descendant %d is in use: %v", i+1, err)
			}
		}
		check(t, s.verifier.Still(others))
	}
}

// TestLineage: the chain is bounded, and only the operator begins none.
func TestLineage(t *testing.T) {
	if all, err := Operator("root").Lineage(); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
	p := someone()
	p.Issuer, p.TokenID = server, "tk_x"
	p.Ancestors = make([]Ancestor, MaxAncestors)
	if _, err := p.Lineage(); ReasonOf(err) != Denied {
		t.Error(err)
	}
	if _, ok := p.ForSandbox(box, time.Now().Add(time.Hour)); ok {
		t.Error("the chain of a sandbox's token is too long")
	}
}

// TestHostileAncestors: a claim that is not one list of ancestors is refused, so that no spelling of
// an ancestor misses its revocation.
func TestHostileAncestors(t *testing.T) {
	s := newSetup(t)
	good := Ancestor{Issuer: "https://a b", Key: "", TokenID: "x y%"}.String()
	s.accepted(t, s.craft(t, s.header(), with(s.payload(), "ancestors", []string{good})))
	for _, bad := range []any{"x", []string{"x"}, []string{"a b"}, []string{" k id"},
		[]string{"a k "}, []string{"a k i d"}, []string{"%61 k id"}, []string{"a k %zz"},
		[]string{good, good, good, good, good}, []int{1}, map[string]any{},
		[]string{strings.Repeat("a", maxAncestor) + " k id"}} {
		s.refused(t, s.craft(t, s.header(), with(s.payload(), "ancestors", bad)), BadClaims)
	}
}
