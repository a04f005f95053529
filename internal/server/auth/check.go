package auth

import (
	"crypto/subtle"

	"turnstone.dev/turnstone"
)

// A Request is what a caller wants to do, as far as the request alone says it.
type Request struct {
	Scope Scope
	// Session and Template are the names in the request; empty: it touches none. A new session that
	// has no name yet has its ID here.
	Session, Template string
	Sandbox           turnstone.SandboxID // empty: the request is about no single sandbox
}

// Allow reports why the principal may not make the request. It is called before anything is looked
// up, so its answer tells nothing about what exists. The error has the Reason Denied.
func (p Principal) Allow(r Request) error {
	switch {
	case !p.Has(r.Scope):
		return refuse("auth.check", Denied, "does not grant the scope %s", r.Scope)
	case p.Sandbox != "" && p.Sandbox != r.Sandbox:
		return refuse("auth.check", Denied, "is for the sandbox %s only", p.Sandbox)
	}
	return p.AllowNames(r.Session, r.Template)
}

// AllowNames is Allow for names alone, of what a request for which a scope was checked leads to.
// Empty names are allowed.
func (p Principal) AllowNames(session, template string) error {
	switch {
	case session != "" && !matches(p.Sessions, session):
		return refuse("auth.check", Denied, "does not grant the session %.80q", session)
	case template != "" && !matches(p.Templates, template):
		return refuse("auth.check", Denied, "does not grant the template %.80q", template)
	}
	return nil
}

// An Owner says to whom an object belongs that a request found. The zero Owner is that of an object
// that does not exist.
type Owner struct {
	Tenant            string
	Session, Template string              // names; empty: the object has none
	Sandbox           turnstone.SandboxID // empty: the object is no sandbox's
}

// Sees reports whether an object with this owner exists for the principal. The work does not depend
// on whether there is no such object, or one that the principal may not see.
func (p Principal) Sees(o Owner) bool {
	// Digests of the two have one length, which ConstantTimeCompare wants.
	have, want := digest(o.Tenant), digest(p.Tenant)
	tenant := subtle.ConstantTimeCompare(have[:], want[:]) == 1 && p.Tenant != ""
	session := matches(p.Sessions, o.Session) || o.Session == ""
	template := matches(p.Templates, o.Template) || o.Template == ""
	sandbox := p.Sandbox == "" || p.Sandbox == o.Sandbox
	return tenant && session && template && sandbox
}

// See is Sees as an error of kind NotFound about the object called name, such as "sb_…" or
// "session research". It is the only error about an object that does not exist, too.
func (p Principal) See(op turnstone.Op, name string, o Owner) error {
	if p.Sees(o) {
		return nil
	}
	return turnstone.Errorf(op, turnstone.KindNotFound, name, "does not exist").
		WithHint("list what there is, and check that the token is one of the right tenant")
}

// Check is Allow, then See: the whole decision about a request for one object.
func (p Principal) Check(r Request, name string, o Owner) error {
	if err := p.Allow(r); err != nil {
		return err
	}
	return p.See("auth.check", name, o)
}

// MayIssue reports why the principal may not give a token these claims to somebody: nobody hands
// out more than it has. The error has the Reason Denied.
func (p Principal) MayIssue(c Claims) error {
	deny := func(format string, args ...any) error {
		return refuse("token.issue", Denied, format, args...)
	}
	if !p.Has(TokensIssue) {
		return deny("does not grant the scope %s", TokensIssue)
	}
	if c.Tenant != p.Tenant && !p.Has(TenantsIssue) {
		return deny("does not grant the scope %s", TenantsIssue)
	}
	if p.Sandbox != "" && c.Sandbox != p.Sandbox {
		return deny("is for the sandbox %s only", p.Sandbox)
	}
	for _, s := range c.Scopes {
		if !p.Has(s) && !p.hasAll(s) {
			return deny("does not grant the scope %.60q", string(s))
		}
	}
	for _, set := range []struct {
		what       string
		have, want []Pattern
	}{{"session", p.Sessions, c.Sessions}, {"template", p.Templates, c.Templates}} {
		for _, want := range set.want {
			if !included(set.have, want) {
				return deny("does not grant the %ss %.80q", set.what, string(want))
			}
		}
	}
	if !p.Expires.IsZero() && c.Expires.After(p.Expires) {
		return refuse("token.issue", Denied, "ends before the new token would").
			WithHint("ask for a shorter life; a token with tokens:renew makes one like itself that ends later")
	}
	return nil
}

func included(have []Pattern, want Pattern) bool {
	for _, h := range have {
		if h.includes(want) {
			return true
		}
	}
	return false
}

// hasAll reports whether wildcard is "SERVICE:*" and the principal has each scope of the service.
func (p Principal) hasAll(wildcard Scope) bool {
	if !known(wildcard) {
		return false
	}
	for _, s := range scopes {
		if wildcard.Covers(s) && !p.Has(s) {
			return false
		}
	}
	return true
}
