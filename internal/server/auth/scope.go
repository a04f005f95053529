package auth

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// A Scope is a right, "SERVICE:ACTION"; the action "*" stands for all of the
// service except admin, manage and renew.
type Scope string

// The scopes. The control API says which of its methods needs which.
const (
	TurnsRun    Scope = "turns:run"
	TurnsRead   Scope = "turns:read"
	TurnsCancel Scope = "turns:cancel"
	TurnsAdmin  Scope = "turns:admin" // cancel turns of other clients

	SandboxesCreate  Scope = "sandboxes:create"
	SandboxesRead    Scope = "sandboxes:read"
	SandboxesConnect Scope = "sandboxes:connect" // open the channel
	SandboxesControl Scope = "sandboxes:control" // pause, resume, fork, snapshot, set the timeout
	SandboxesExpose  Scope = "sandboxes:expose"
	SandboxesDelete  Scope = "sandboxes:delete"
	SandboxesAdmin   Scope = "sandboxes:admin"  // control and delete those of other clients
	SandboxesManage  Scope = "sandboxes:manage" // say what manages a new one

	SessionsRead   Scope = "sessions:read"
	SessionsWrite  Scope = "sessions:write"
	SessionsDelete Scope = "sessions:delete"
	SessionsAdmin  Scope = "sessions:admin" // rename and delete those of other clients

	TemplatesRead  Scope = "templates:read"
	TemplatesWrite Scope = "templates:write"

	TokensRead   Scope = "tokens:read"
	TokensIssue  Scope = "tokens:issue"
	TokensRevoke Scope = "tokens:revoke"
	TokensRenew  Scope = "tokens:renew" // make the token's own successor, which ends later

	TenantsIssue Scope = "tenants:issue" // issue tokens for other tenants
	NodesRead    Scope = "nodes:read"
	NodesWrite   Scope = "nodes:write"
	UsageRead    Scope = "usage:read"
	PoolsWrite   Scope = "pools:write" // set pools of the tenant's own
)

var scopes = []Scope{TurnsRun, TurnsRead, TurnsCancel, TurnsAdmin,
	SandboxesCreate, SandboxesRead, SandboxesConnect, SandboxesControl, SandboxesExpose,
	SandboxesDelete, SandboxesAdmin, SandboxesManage, SessionsRead, SessionsWrite, SessionsDelete, SessionsAdmin,
	TemplatesRead, TemplatesWrite,
	TokensRead, TokensIssue, TokensRevoke, TokensRenew, TenantsIssue, NodesRead, NodesWrite, UsageRead, PoolsWrite}

// Scopes returns all scopes without "*", in the order of the documentation.
func Scopes() []Scope { return slices.Clone(scopes) }

// administrative reports whether the scope is about objects of other clients, makes what they believe, or
// makes a token live on.
// "SERVICE:*" does not include it: a token has it only by its name.
func (s Scope) administrative() bool {
	return strings.HasSuffix(string(s), ":admin") || s == SandboxesManage || s == TokensRenew
}

// AllScopes returns "SERVICE:*" for each service, and the administrative scopes.
func AllScopes() (all []Scope) {
	for _, s := range scopes {
		if s.administrative() {
			all = append(all, s)
		} else if w := Scope(s.service() + ":*"); !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

func (s Scope) service() string { service, _, _ := strings.Cut(string(s), ":"); return service }

// Covers reports whether the granted scope s includes the scope that is needed.
func (s Scope) Covers(need Scope) bool {
	if s == need {
		return known(s)
	}
	return known(s) && known(need) && !need.administrative() && s == Scope(need.service()+":*")
}

func known(s Scope) bool {
	if service, all := strings.CutSuffix(string(s), ":*"); all {
		return slices.ContainsFunc(scopes, func(k Scope) bool { return k.service() == service })
	}
	return slices.Contains(scopes, s)
}

// ParseScopes parses scopes that a user or a configuration lists. The error is of kind Invalid if
// one is not known.
func ParseScopes(words []string) ([]Scope, error) {
	var list []Scope
	for _, w := range words {
		if !known(Scope(w)) {
			return nil, turnstone.Errorf("auth.scope", turnstone.KindInvalid, "scope",
				"%.60q is not known", w).WithHint(nearest(w) + "use SERVICE:* or some of " +
				scopeList())
		}
		list = append(list, Scope(w))
	}
	return list, nil
}

// nearest begins a hint with the scopes of the service that a word names, or begins like.
func nearest(word string) string {
	var near []string
	for _, s := range scopes {
		if len(word) >= 3 && strings.HasPrefix(string(s), word[:3]) {
			near = append(near, string(s))
		}
	}
	if near == nil {
		return ""
	}
	return "did you mean " + strings.Join(near, ", ") + "? "
}

func scopeList() string {
	var words []string
	for _, s := range scopes {
		words = append(words, string(s))
	}
	return strings.Join(words, ", ")
}

// A Pattern matches names of sessions or templates as path.Match does, except that Any also matches
// a name with "/" in it.
type Pattern string

// Any is the pattern that matches every name.
const Any Pattern = "*"

// Bounds of the patterns of a token.
const (
	maxPatterns = 64
	maxPattern  = 200 // bytes
)

// ParsePatterns checks patterns that a user, a configuration or a token lists.
func ParsePatterns(words []string) ([]Pattern, error) {
	if len(words) > maxPatterns {
		return nil, fmt.Errorf("there are %d patterns; the limit is %d", len(words), maxPatterns)
	}
	var list []Pattern
	for _, w := range words {
		if _, err := path.Match(w, ""); err != nil || w == "" || len(w) > maxPattern {
			return nil, fmt.Errorf("%.60q is not a pattern of names", w)
		}
		list = append(list, Pattern(w))
	}
	return list, nil
}

// Match reports whether the pattern matches name.
func (p Pattern) Match(name string) bool {
	if p == Any {
		return true
	}
	ok, err := path.Match(string(p), name)
	return ok && err == nil
}

// includes reports whether p matches at least what other does. It may miss that it does, and is
// never wrong about yes.
func (p Pattern) includes(other Pattern) bool {
	literal := !strings.ContainsAny(string(other), `*?[\`)
	return p == Any || p == other || literal && p.Match(string(other))
}

// matches reports whether one of the patterns matches name. It tries all of them, so that its work
// does not depend on the answer.
func matches(list []Pattern, name string) (any bool) {
	for _, p := range list {
		if p.Match(name) {
			any = true
		}
	}
	return any
}
