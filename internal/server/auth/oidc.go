package auth

import (
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// An OIDC is an OpenID Connect issuer that a server trusts. Its tokens get at most what is here, so
// an issuer that is taken over speaks only for the tenants that it was given.
type OIDC struct {
	// Issuer is the URL that its tokens have as iss, such as
	// https://token.actions.githubusercontent.com. It has https, except on a loopback address.
	Issuer string
	// Audiences are the accepted values of aud; none: the server's name.
	Audiences []string
	// Algorithms is the allow-list; none: RS256, ES256 and EdDSA.
	Algorithms []string
	// Tenants are patterns of the tenants that its tokens may name; OperatorTenant only by its name.
	// Tenant is that of tokens that name none; empty: such tokens are refused.
	Tenants []Pattern
	Tenant  string
	// Scopes bounds the scopes of its tokens. Grant has what tokens get that have no claim scope,
	// sessions or templates of their own.
	Scopes []Scope
	Grant  Grant
	// Require has patterns that claims of text must match, such as repository: "example/*". As in
	// path.Match, "*" does not match a "/".
	Require map[string]string

	MaxTTL time.Duration // longest accepted lifetime; 0: a day
	// Fresh is the age up to which keys are used without asking again; 0: 15 minutes. Outage is how
	// much longer they are used while the issuer does not answer; 0: a day; negative: not at all.
	Fresh, Outage time.Duration
}

// A Grant is what tokens get that do not say it themselves.
type Grant struct {
	Scopes              []Scope
	Sessions, Templates []Pattern
}

// Defaults and bounds of an OIDC.
const (
	defaultRemoteTTL = 24 * time.Hour
	defaultFresh     = 15 * time.Minute
	maxFresh         = 24 * time.Hour
	defaultOutage    = 24 * time.Hour
	maxOutage        = 7 * 24 * time.Hour
)

// remoteTypes are the types of tokens that grant access: without a type, JWT, and RFC 9068. Others
// are made for something else, such as "logout+jwt" (RFC 8725, 3.11).
var remoteTypes = []string{"", "jwt", "at+jwt"}

// complete checks o and sets its defaults. server is the server's name.
func (o OIDC) complete(server string) (OIDC, error) {
	bad := func(format string, args ...any) (OIDC, error) {
		return OIDC{}, turnstone.Errorf("auth.issuer", turnstone.KindInvalid, o.Issuer, format,
			args...)
	}
	if err := checkURL(o.Issuer); err != nil {
		return OIDC{}, err
	}
	if len(o.Audiences) == 0 {
		o.Audiences = []string{server}
	}
	if o.Algorithms == nil {
		o.Algorithms = []string{"RS256", "ES256", "EdDSA"}
	}
	if err := checkAlgorithms(o.Algorithms); err != nil {
		return OIDC{}, err
	}
	for what, list := range map[string][]Scope{"scopes": o.Scopes, "grant": o.Grant.Scopes} {
		for _, s := range list {
			if !known(s) {
				return bad("%s: the scope %.60q is not known", what, string(s))
			}
		}
	}
	for _, list := range [][]Pattern{o.Tenants, o.Grant.Sessions, o.Grant.Templates} {
		if _, err := ParsePatterns(plain(list)); err != nil {
			return bad("%w", err)
		}
	}
	for claim, pattern := range o.Require {
		if _, err := path.Match(pattern, ""); err != nil || claim == "" || pattern == "" {
			return bad("%.60q is not a pattern for the claim %.60q", pattern, claim)
		}
	}
	if o.Tenant != "" {
		if err := checkTenant(o.Tenant); err != nil {
			return OIDC{}, err
		}
	}
	if o.Tenant == "" && len(o.Tenants) == 0 {
		return bad("has no tenant")
	}
	o.MaxTTL = or(o.MaxTTL, defaultRemoteTTL)
	o.Fresh, o.Outage = or(o.Fresh, defaultFresh), or(o.Outage, defaultOutage)
	if o.MaxTTL < 0 || o.MaxTTL > MaxTTL {
		return bad("the longest lifetime %s is not between 0 and %s", o.MaxTTL, MaxTTL)
	}
	if o.Fresh < time.Second || o.Fresh > maxFresh || o.Outage > maxOutage {
		return bad("keys may be fresh for 1s to %s, and survive an outage of at most %s", maxFresh,
			maxOutage)
	}
	o.Outage = max(o.Outage, 0)
	return o, nil
}

func or(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// checkURL reports a URL that tokens and keys cannot be trusted with: it has https, or http on a
// loopback address.
func checkURL(s string) error {
	bad := func(format string, args ...any) error {
		return turnstone.Errorf("auth.issuer", turnstone.KindInvalid, "the URL of an issuer",
			format, args...).WithHint("use https://HOST[/PATH]")
	}
	u, err := url.Parse(s)
	if err != nil || len(s) > maxText {
		return bad("is malformed, or longer than %d bytes", maxText)
	}
	switch {
	case u.Host == "", u.User != nil, u.Fragment != "", u.RawQuery != "", u.Opaque != "":
		return bad("%.200q is not https://HOST[/PATH]", u.Redacted())
	case !trusted(u):
		return bad("%.200q does not have https", s)
	}
	return nil
}

// trusted reports whether nobody between can change what the URL answers.
func trusted(u *url.URL) bool {
	host := u.Hostname()
	ip := net.ParseIP(host)
	return u.Scheme == "https" && host != "" ||
		u.Scheme == "http" && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// bound completes and restricts the claims of a verified token.
func (o OIDC) bound(p *parsed, c *Claims) error {
	for claim, pattern := range o.Require {
		value, err := text(p.claims[claim], maxSig)
		if ok, _ := path.Match(pattern, value); err != nil || !ok {
			return refuse("auth.verify", BadClaims, "%.60q is not what the server requires", claim)
		}
	}
	switch {
	case c.Tenant != "" && !o.speaksFor(c.Tenant):
		return refuse("auth.verify", BadClaims, "its issuer may not speak for its tenant")
	case c.Tenant == "" && o.Tenant == "":
		return refuse("auth.verify", BadClaims, "%s is missing", claimTenant)
	case c.Tenant == "":
		c.Tenant = o.Tenant
	}
	if p.asksForScopes() {
		c.Scopes = narrow(c.Scopes, o.Scopes)
	} else {
		c.Scopes = slices.Clone(o.Grant.Scopes)
	}
	if p.claims[claimSessions] == nil {
		c.Sessions = o.Grant.Sessions
	}
	if p.claims[claimTemplates] == nil {
		c.Templates = o.Grant.Templates
	}
	return nil
}

// speaksFor reports whether tokens may name a tenant. The operator's own tenant has to be listed by
// its name, so that a pattern such as Any does not include it.
func (o OIDC) speaksFor(tenant string) bool {
	if tenant == OperatorTenant {
		return slices.Contains(o.Tenants, OperatorTenant)
	}
	return matches(o.Tenants, tenant)
}

// standardScopes are those of OpenID Connect Core 1.0 (5.4, 11). They are about the user's profile.
var standardScopes = []string{"openid", "profile", "email", "address", "phone", "offline_access"}

// asksForScopes reports whether the token names a scope that is not a standard one, known or not:
// then it does not get what tokens get that name none.
func (p *parsed) asksForScopes() bool {
	raw := p.claims[claimScope]
	line, err := text(raw, maxScope)
	return raw != nil && err == nil && slices.ContainsFunc(strings.Fields(line),
		func(w string) bool { return !slices.Contains(standardScopes, w) })
}

// narrow returns the scopes that both lists grant.
func narrow(have, bound []Scope) (both []Scope) {
	for _, s := range scopes {
		covers := func(g Scope) bool { return g.Covers(s) }
		if slices.ContainsFunc(have, covers) && slices.ContainsFunc(bound, covers) {
			both = append(both, s)
		}
	}
	return both
}

// Check reports why a server called name could not use o. The error is of kind Invalid.
func (o OIDC) Check(name string) error {
	_, err := o.complete(name)
	return err
}
