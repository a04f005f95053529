package controller

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// TestSuccession: a token with tokens:renew makes its successor again and again, more often than tokens may
// descend from each other; the revocation of any one of them ends all, what they have made too, also after
// the first one has ended, and nothing of another succession.
func TestSuccession(t *testing.T) {
	w := newWorld(t, "a")
	ctx := t.Context()
	top := with("acme")
	top.Expires = time.Now().Add(time.Minute)
	top.Scopes = []auth.Scope{auth.TokensIssue, auth.TokensRead, auth.TokensRenew, auth.TokensRevoke, auth.SandboxesRead}
	renew := func(c *callerClient, ttl time.Duration) (*v1.CreateTokenResponse, error) {
		scopes := []string{"tokens:issue", "tokens:read", "tokens:renew", "tokens:revoke", "sandboxes:read"}
		a, err := c.server.CreateToken(ctx, ask(&v1.CreateTokenRequest{Name: "operator", Subject: "ci", Scopes: scopes,
			Ttl: duration(ttl)}))
		if err != nil {
			return nil, err
		}
		return a.Msg, nil
	}
	follow := func() (all []*v1.CreateTokenResponse) {
		first := w.as(top)
		at := first
		for n := range 2 * auth.MaxAncestors {
			made, err := renew(at, time.Hour+time.Duration(n)*time.Minute)
			must(t, err)
			if !strings.HasPrefix(made.Token.TokenId, first.id+".") {
				t.Fatalf("the successor of %s is %s", first.id, made.Token.TokenId)
			}
			all, at = append(all, made), w.bearer(made.Secret)
		}
		return all
	}
	valid := func(token string) bool {
		_, err := w.verifier.Verify(ctx, token)
		if err != nil && auth.ReasonOf(err) != auth.Revoked {
			t.Fatal(err)
		}
		return err == nil
	}
	all, others := follow(), follow()
	last := w.bearer(all[len(all)-1].Secret)
	// What is not like the token ends with it.
	_, err := last.server.CreateToken(ctx, ask(&v1.CreateTokenRequest{Name: "child", Scopes: []string{"sandboxes:read"},
		Ttl: duration(3 * time.Hour)}))
	w.fails(err, connect.CodePermissionDenied)
	child, err := last.server.CreateToken(ctx, ask(&v1.CreateTokenRequest{Name: "child",
		Scopes: []string{"sandboxes:read"}, Ttl: duration(time.Minute)}))
	must(t, err)
	w.o.Longest = time.Minute
	_, err = renew(last, 2*time.Hour)
	w.fails(err, connect.CodeInvalidArgument)

	_, err = w.as(with("acme")).server.RevokeToken(ctx, ask(&v1.RevokeTokenRequest{TokenId: all[1].Token.TokenId}))
	must(t, err)
	for _, made := range append(all, child.Msg) {
		if valid(made.Secret) {
			t.Errorf("%s is valid after the revocation of %s", made.Token.TokenId, all[1].Token.TokenId)
		}
	}
	for _, made := range others {
		if !valid(made.Secret) {
			t.Errorf("%s of another succession is revoked", made.Token.TokenId)
		}
	}
	// The revocation of the first token is kept for as long as a successor can live.
	kept, err := w.o.Records.Revocations(ctx, time.Now().Add(auth.MaxTTL-time.Hour))
	must(t, err)
	if len(kept) != 1 || kept[0].TokenID != auth.FirstID(all[0].Token.TokenId) {
		t.Errorf("kept are %+v", kept)
	}
}
