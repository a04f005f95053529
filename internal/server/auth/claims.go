package auth

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// Bounds of claims.
const (
	maxText      = 256 // bytes of a name: issuer, subject, ID
	maxScope     = 2048
	maxAudiences = 16
	maxTime      = 253402300799 // the end of the year 9999
)

// Claims are what a token of the server's own issuer says.
type Claims struct {
	Tenant              string // at most 64 letters, digits, ".", "_" and "-"
	Subject             string
	Scopes              []Scope
	Sessions, Templates []Pattern
	Sandbox             turnstone.SandboxID // empty: not restricted
	Expires             time.Time
	Ancestors           []Ancestor // tokens with which it was made, the first one first
	First               string     // ID of the first token, for a successor; empty: it is none
}

// The names of claims that are not registered ones.
const (
	claimTenant    = "tenant"
	claimScope     = "scope" // RFC 8693, 4.2
	claimSessions  = "sessions"
	claimTemplates = "templates"
	claimSandbox   = "sandbox"
	claimAncestors = "ancestors"
)

// encoded is the payload of an own token.
type encodedClaims struct {
	Issuer    string              `json:"iss"`
	Audience  string              `json:"aud"`
	Subject   string              `json:"sub"`
	ID        string              `json:"jti"`
	Issued    int64               `json:"iat"`
	Expires   int64               `json:"exp"`
	Tenant    string              `json:"tenant"`
	Scope     string              `json:"scope"`
	Sessions  []Pattern           `json:"sessions,omitempty"`
	Templates []Pattern           `json:"templates,omitempty"`
	Sandbox   turnstone.SandboxID `json:"sandbox,omitempty"`
	Ancestors []string            `json:"ancestors,omitempty"`
}

// check reports claims that no verifier would accept. The error is of kind Invalid.
func (c Claims) check() error {
	bad := func(format string, args ...any) error {
		return turnstone.Errorf("token.issue", turnstone.KindInvalid, "the token", format, args...)
	}
	if err := checkTenant(c.Tenant); err != nil {
		return err
	}
	if raw, err := json.Marshal(c.Subject); err != nil {
		return bad("sub is no text")
	} else if _, err := text(raw, maxText); err != nil {
		return bad("sub %w", err)
	}
	if len(c.Scopes) == 0 {
		return bad("would grant no scope")
	}
	words := make([]string, len(c.Scopes))
	for i, s := range c.Scopes {
		words[i] = string(s)
	}
	if _, err := ParseScopes(words); err != nil {
		return err
	}
	if _, err := encodeAncestors(c.Ancestors); err != nil {
		return err
	}
	for _, list := range [][]Pattern{c.Sessions, c.Templates} {
		if _, err := ParsePatterns(plain(list)); err != nil {
			return bad("%w", err)
		}
	}
	if c.Sandbox != "" && !isSandbox(string(c.Sandbox)) {
		return bad("%.60q is not the ID of a sandbox", string(c.Sandbox))
	}
	return nil
}

func plain(list []Pattern) []string {
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = string(p)
	}
	return words
}

// checkTenant reports a name that is not a tenant's: the form of a session's name.
func checkTenant(name string) error {
	if err := turnstone.CheckName(turnstone.NameOfSession, name); err != nil {
		return turnstone.Errorf("auth.tenant", turnstone.KindInvalid, "tenant",
			"%.80q is not a valid name", name).WithHint(turnstone.HintOf(err))
	}
	return nil
}

func isSandbox(id string) bool {
	rest, ok := strings.CutPrefix(id, "sb_")
	return ok && len(rest) == 18 && strings.Trim(rest, "0123456789abcdefghijklmnopqrstuv") == ""
}

// span is how the time of a token is judged.
type span struct {
	now, latest time.Time // the wall clock's time, and one that does not go back
	leeway      time.Duration
	late        time.Duration // the leeway of the end
	longest     time.Duration // lifetime, from now
}

// times checks exp, nbf and iat, and returns the end.
func (p *parsed) times(s span) (time.Time, error) {
	exp, err := seconds(p.claims["exp"], math.Floor)
	if err != nil {
		return time.Time{}, refuse("auth.verify", BadClaims, "exp %w", err)
	}
	if !s.latest.Add(-s.late).Before(exp) {
		return time.Time{}, refuse("auth.verify", Expired, "expired at %s", when(exp))
	}
	for _, name := range []string{"nbf", "iat"} {
		if p.claims[name] == nil {
			continue
		}
		from, err := seconds(p.claims[name], math.Ceil)
		if err != nil {
			return time.Time{}, refuse("auth.verify", BadClaims, "%s %w", name, err)
		}
		if from.After(s.now.Add(s.leeway)) {
			return time.Time{}, refuse("auth.verify", NotYet, "is valid from %s", when(from))
		}
	}
	if exp.After(s.now.Add(s.longest + s.leeway)) {
		return time.Time{}, refuse("auth.verify", BadClaims,
			"is valid until %s; at most %s are accepted", when(exp), s.longest)
	}
	return exp, nil
}

func when(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// seconds decodes a NumericDate (RFC 7519, 2). round makes fractions whole.
func seconds(raw json.RawMessage, round func(float64) float64) (time.Time, error) {
	if raw == nil {
		return time.Time{}, errMissing
	}
	f, err := strconv.ParseFloat(string(raw), 64) // JSON has no NaN, no hexadecimals and no "_"
	if err != nil || f < 0 || f > maxTime {
		return time.Time{}, errTime
	}
	return time.Unix(int64(round(f)), 0), nil
}

// audience reports a token that is not for one of names.
func (p *parsed) audience(names []string) error {
	raw := p.claims["aud"]
	var all []string
	one, err := text(raw, maxText)
	if err == nil {
		all = []string{one}
	} else if all, err = texts(raw, maxAudiences, maxText); err != nil {
		return refuse("auth.verify", Audience, "aud is missing or malformed")
	}
	for _, a := range all {
		if slices.Contains(names, a) {
			return nil
		}
	}
	return refuse("auth.verify", Audience, "is for another server than %q", names)
}

// id returns jti, or a digest of what is signed: the signature is left out, because some algorithms
// have several for the same claims.
func (p *parsed) id() (string, error) {
	if p.claims["jti"] != nil {
		id, err := text(p.claims["jti"], maxText)
		if err != nil {
			return "", refuse("auth.verify", BadClaims, "jti %w", err)
		}
		return id, nil
	}
	sum := digest(p.raw[:strings.LastIndexByte(p.raw, '.')])
	return "sha256." + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// grants decodes what the token grants. Scopes that are not known grant nothing and are left out:
// OpenID Connect has scopes of its own. Missing claims leave their fields empty.
func (p *parsed) grants() (c Claims, err error) {
	bad := func(name string, err error) (Claims, error) {
		return Claims{}, refuse("auth.verify", BadClaims, "%s %w", name, err)
	}
	if c.Subject, err = text(p.claims["sub"], maxText); err != nil {
		return bad("sub", err)
	}
	if raw := p.claims[claimTenant]; raw != nil {
		if c.Tenant, err = text(raw, maxText); err != nil {
			return bad(claimTenant, err)
		}
		if checkTenant(c.Tenant) != nil {
			return bad(claimTenant, errName)
		}
	}
	if raw := p.claims[claimScope]; raw != nil && string(raw) != `""` {
		line, err := text(raw, maxScope)
		if err != nil {
			return bad(claimScope, err)
		}
		for w := range strings.FieldsSeq(line) {
			if s := Scope(w); known(s) && !slices.Contains(c.Scopes, s) {
				c.Scopes = append(c.Scopes, s)
			}
		}
	}
	for _, set := range []struct {
		name string
		to   *[]Pattern
	}{{claimSessions, &c.Sessions}, {claimTemplates, &c.Templates}} {
		raw := p.claims[set.name]
		if raw == nil {
			continue
		}
		words, err := texts(raw, maxPatterns, maxPattern)
		if err != nil {
			return bad(set.name, err)
		}
		if *set.to, err = ParsePatterns(words); err != nil {
			return bad(set.name, err)
		}
	}
	if raw := p.claims[claimSandbox]; raw != nil {
		id, err := text(raw, maxText)
		if err != nil {
			return bad(claimSandbox, err)
		}
		if !isSandbox(id) {
			return bad(claimSandbox, errName)
		}
		c.Sandbox = turnstone.SandboxID(id)
	}
	if raw := p.claims[claimAncestors]; raw != nil {
		words, err := texts(raw, MaxAncestors, maxAncestor)
		if err != nil {
			return bad(claimAncestors, err)
		}
		var ok bool
		if c.Ancestors, ok = ancestors(words); !ok {
			return bad(claimAncestors, errName)
		}
	}
	return c, nil
}
