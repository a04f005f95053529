package controller

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/records"
)

// A serverService serves ServerService.
type serverService struct{ *Controller }

// ListNodes implements turnstonev1connect.ServerServiceHandler.
func (c serverService) ListNodes(context.Context, *connect.Request[v1.ListNodesRequest]) (
	*connect.Response[v1.ListNodesResponse], error) {
	all, lost := c.nodes.present()
	return connect.NewResponse(&v1.ListNodesResponse{Nodes: all, Lost: lost,
		Waiting: uint32(c.gate.Waiting())}), nil
}

// usual are the scopes of a token whose request names none, of those that its maker has.
var usual = []auth.Scope{"turns:*", "sandboxes:*", "sessions:*", "templates:*", "usage:*",
	auth.NodesRead}

// grants returns the scopes of a new token.
func grants(p auth.Principal, words []string) (list []auth.Scope, err error) {
	if len(words) > 0 {
		return auth.ParseScopes(words)
	}
	for _, s := range auth.Scopes() {
		if p.Has(s) && slices.ContainsFunc(usual, func(u auth.Scope) bool { return u.Covers(s) }) {
			list = append(list, s)
		}
	}
	return list, nil
}

// patterns returns the patterns of a new token: those of the request, else its maker's.
func patterns(words []string, own []auth.Pattern) ([]auth.Pattern, error) {
	if len(words) == 0 {
		return own, nil
	}
	list, err := auth.ParsePatterns(words)
	if err != nil {
		return nil, turnstone.NewError("token.create", turnstone.KindInvalid, "the token", err)
	}
	return list, nil
}

// CreateToken implements turnstonev1connect.ServerServiceHandler.
func (c serverService) CreateToken(ctx context.Context,
	r *connect.Request[v1.CreateTokenRequest]) (*connect.Response[v1.CreateTokenResponse], error) {
	p, m := guard.Caller(ctx), r.Msg
	if m.Ttl.AsDuration() > c.o.Longest {
		return nil, turnstone.Errorf("token.create", turnstone.KindInvalid, "ttl",
			"%s is longer than the server permits: %s", m.Ttl.AsDuration(), c.o.Longest).
			WithHint("ask for a shorter life, or let the operator set tokens.longest")
	}
	claims := auth.Claims{Tenant: m.Tenant, Subject: m.Subject,
		Expires: time.Now().Add(m.Ttl.AsDuration()).Truncate(time.Second)}
	if claims.Tenant == "" {
		claims.Tenant = p.Tenant
	}
	if claims.Subject == "" {
		claims.Subject = m.Name
	}
	var all [3]error
	claims.Scopes, all[0] = grants(p, m.Scopes)
	claims.Sessions, all[1] = patterns(m.Sessions, p.Sessions)
	claims.Templates, all[2] = patterns(m.Templates, p.Templates)
	for _, err := range all {
		if err != nil {
			return nil, err
		}
	}
	var err error
	if p.Succeeds(c.o.Name, claims) {
		claims.First, claims.Ancestors, err = p.Succession()
	} else if err = p.MayIssue(claims); err == nil {
		claims.Ancestors, err = p.Lineage()
	}
	if err != nil {
		return nil, err
	}
	issued, err := c.o.Issuer.Issue(ctx, claims)
	if err != nil {
		return nil, err
	}
	t := records.Token{ID: issued.ID, Tenant: claims.Tenant, Name: m.Name, Subject: claims.Subject,
		Key: issued.Key, Scopes: message.Texts(claims.Scopes), Issued: time.Now(),
		Expires: issued.Expires}
	for _, a := range claims.Ancestors {
		t.Ancestors = append(t.Ancestors, records.Ancestor(a))
	}
	if err := c.o.Records.PutToken(ctx, t); err != nil {
		return nil, err // nobody has the token
	}
	return connect.NewResponse(&v1.CreateTokenResponse{Token: toToken(t, false),
		Secret: issued.Token.Reveal()}), nil
}

func toToken(t records.Token, revoked bool) *v1.Token {
	return &v1.Token{TokenId: t.ID, Name: t.Name, Tenant: t.Tenant, Subject: t.Subject,
		Scopes: t.Scopes, Created: message.Timestamp(t.Issued), Expires: message.Timestamp(t.Expires),
		Revoked: revoked}
}

// ListTokens implements turnstonev1connect.ServerServiceHandler. Who may issue tokens for other
// tenants sees the tokens of all.
func (c serverService) ListTokens(ctx context.Context, r *connect.Request[v1.ListTokensRequest]) (
	*connect.Response[v1.ListTokensResponse], error) {
	p := guard.Caller(ctx)
	tenant := p.Tenant
	if p.Has(auth.TenantsIssue) {
		tenant = ""
	}
	all, next, err := c.o.Records.TokenPage(ctx, tenant, pageOf(r.Msg.Page))
	if err != nil {
		return nil, err
	}
	// A revocation may have been forgotten a day after the end of its token.
	revoked, err := c.o.Records.Revocations(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	ended := map[records.Revocation]bool{}
	for _, r := range revoked {
		r.Until = time.Time{}
		ended[r] = true
	}
	answer := &v1.ListTokensResponse{NextPageToken: next}
	for _, t := range all {
		line := append(t.Ancestors, records.Ancestor{Issuer: c.o.Name, Key: t.Key, TokenID: t.ID})
		answer.Tokens = append(answer.Tokens, toToken(t, slices.ContainsFunc(line,
			func(a records.Ancestor) bool {
				return ended[records.Revocation{Issuer: a.Issuer, TokenID: a.TokenID}] ||
					ended[records.Revocation{Issuer: a.Issuer, Key: a.Key}]
			})))
	}
	return connect.NewResponse(answer), nil
}

// RevokeToken implements turnstonev1connect.ServerServiceHandler.
func (c serverService) RevokeToken(ctx context.Context,
	r *connect.Request[v1.RevokeTokenRequest]) (*connect.Response[v1.RevokeTokenResponse], error) {
	p := guard.Caller(ctx)
	t, err := c.o.Records.Token(ctx, r.Msg.TokenId)
	if err != nil {
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			return nil, err
		}
		t = records.Token{}
	}
	who := auth.Owner{Tenant: t.Tenant}
	if p.Has(auth.TenantsIssue) && t.ID != "" {
		who.Tenant = p.Tenant
	}
	// The ID is not repeated: it may be a token.
	if err := p.See("token.revoke", "the token", who); err != nil {
		return nil, err
	}
	all := []auth.Revocation{{Issuer: c.o.Name, TokenID: t.ID, Until: t.Expires}}
	if slices.Contains(t.Scopes, string(auth.TokensRenew)) {
		// Its successors descend from the first token, and may outlive it.
		all = append(all, auth.Revocation{Issuer: c.o.Name, TokenID: auth.FirstID(t.ID),
			Until: time.Now().Add(auth.MaxTTL)})
	}
	if err = c.o.Publisher.Revoke(ctx, all...); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.RevokeTokenResponse{Token: toToken(t, true)}), nil
}

// Register returns an auth.Register that keeps revocations in records, for auth.NewPublisher.
func Register(s records.Tokens) auth.Register { return register{s} }

type register struct{ records records.Tokens }

// Revoke implements auth.Register.
func (r register) Revoke(ctx context.Context, all ...auth.Revocation) error {
	list := make([]records.Revocation, len(all))
	for i, x := range all {
		list[i] = records.Revocation(x)
	}
	return r.records.Revoke(ctx, list...)
}

// Revocations implements auth.Register.
func (r register) Revocations(ctx context.Context, after time.Time) ([]auth.Revocation, error) {
	all, err := r.records.Revocations(ctx, after)
	list := make([]auth.Revocation, len(all))
	for i, x := range all {
		list[i] = auth.Revocation(x)
	}
	return list, err
}

// Number implements auth.Register.
func (r register) Number(ctx context.Context) (uint64, error) { return r.records.Number(ctx) }
