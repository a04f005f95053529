package plan

import (
	"cmp"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/store/session"
)

// Valid rejects requests that no grant makes valid, so that no message names a flag that does not
// help. Errors are of kind Invalid.
func (a *Authority) Valid() error {
	if a.Replays { // a record was a turn; it is planned without its session
		return nil
	}
	if err := a.validNames(); err != nil {
		return err
	}
	front := a.front()
	for _, f := range front.Files {
		if t, err := document.ParseTransfer(f); err != nil {
			return invalid("files", "%w", err)
		} else if !filepath.IsLocal(t.Path) {
			return outsideFolder(t.Path, errLeaves)
		}
	}
	rules, _ := mergeRules(a.Request, front)
	_, err := network.PolicyOf(&turnstone.NetworkSpec{Allow: rules.Allow, Deny: rules.Deny,
		Only: rules.HasAllow})
	return err
}

// validNames checks the names that the document specifies and its caller does not.
func (a *Authority) validNames() error {
	front := a.front()
	name := front.Session
	// An ID is looked up.
	if name != "" && a.Request.Session == "" && !strings.HasPrefix(name, "s_") {
		if err := session.CheckName(turnstone.NameOfSession, name); err != nil {
			return err
		}
	}
	if front.Branch != "" && a.Request.Branch == "" {
		if err := session.CheckName(turnstone.NameOfBranch, front.Branch); err != nil {
			return err
		}
	}
	if what := a.needsSession(); what != "" {
		return noSession(what)
	}
	return nil
}

// needsSession returns the requested value that requires a session, if no session is named.
func (a *Authority) needsSession() string {
	front := a.front()
	branch := cmp.Or(a.Request.Branch, front.Branch, DefaultBranch)
	switch {
	case cmp.Or(a.Request.Session, front.Session) != "":
	case branch != DefaultBranch:
		return "branch: " + branch
	case cmp.Or(a.Request.Lifetime, front.Lifetime) == turnstone.LifetimeSession:
		return "lifetime: session"
	}
	return ""
}

func noSession(what string) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, what,
		"belongs to a session, and no session is named").
		WithHint("name one with --session or session:")
}
