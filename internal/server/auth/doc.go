// Package auth issues and verifies the tokens of a server's callers, and decides what a caller may
// do. Tokens are JSON Web Tokens (RFC 7519) of the server's own key or of OpenID Connect issuers.
//
// What is not granted is denied: a token without a scope, without a matching pattern of sessions or
// templates, or of another tenant opens nothing. An object of another tenant answers as an object
// that does not exist.
//
// Tokens are untrusted input. Their size, encoding, JSON and header are checked before any key is
// used (RFC 8725), signatures are verified by go-jose, and no error or log holds a token or a key.
package auth

import (
	"context"
	"slices"
	"time"

	"turnstone.dev/turnstone"
)

// A Verifier turns a token into its principal. It may be used concurrently. Errors have a Reason.
type Verifier interface {
	Verify(ctx context.Context, token string) (Principal, error)
}

// A Principal is an authenticated caller and what it was granted.
type Principal struct {
	Issuer  string // of the token; empty for the operator
	Tenant  string
	Subject string
	// TokenID names the token for revocation: its jti, or a digest of it if it has none.
	TokenID string
	Key     string    // ID of the key that signed the token; only its verifier knows it
	Expires time.Time // zero: never; streams that a token opened end then
	Scopes  []Scope
	// Sessions and Templates are the names that the caller may use; none: no session, no template.
	Sessions, Templates []Pattern
	// Sandbox restricts the caller to one sandbox; empty: it is not restricted.
	Sandbox turnstone.SandboxID
	// Ancestors are the tokens with which the token was made.
	Ancestors []Ancestor
}

// OperatorTenant owns what the operator makes without a token.
const OperatorTenant = "local"

// Operator returns the principal of a peer of the server's unix socket, whose user ID is its
// authority.
func Operator(subject string) Principal {
	return Principal{Tenant: OperatorTenant, Subject: subject, Scopes: AllScopes(),
		Sessions: []Pattern{Any}, Templates: []Pattern{Any}}
}

// ForSandbox returns the claims of a token that opens the channel of one sandbox and reads its
// state, as far as the principal may do that, and nothing else. It ends with the principal's token.
// ok is false if there is nothing to grant.
func (p Principal) ForSandbox(id turnstone.SandboxID, expires time.Time) (c Claims, ok bool) {
	from, err := p.Lineage()
	if err != nil || p.Sandbox != "" && p.Sandbox != id {
		return Claims{}, false
	}
	if !p.Expires.IsZero() && expires.After(p.Expires) {
		expires = p.Expires
	}
	c = Claims{Tenant: p.Tenant, Subject: p.Subject, Sandbox: id, Expires: expires,
		Sessions: p.Sessions, Templates: p.Templates, Ancestors: from}
	for _, s := range []Scope{SandboxesConnect, SandboxesRead} {
		if p.Has(s) {
			c.Scopes = append(c.Scopes, s)
		}
	}
	return c, len(c.Scopes) > 0
}

// Has reports whether the principal was granted s.
func (p Principal) Has(s Scope) bool {
	return slices.ContainsFunc(p.Scopes, func(have Scope) bool { return have.Covers(s) })
}
