package plan

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/plan/scripts"
	"turnstone.dev/turnstone/internal/store/session"
)

// Valid rejects requests that no grant makes valid, so that no message names a flag that does not
// help. Errors are of kind Invalid.
func (a *Authority) Valid() error {
	if err := HasDocument(a.Request.Document); err != nil {
		return err
	}
	if err := a.validChoices(); err != nil {
		return err
	}
	if a.Replays { // a record was a turn; it is planned without its session
		return nil
	}
	if err := a.validNames(); err != nil {
		return err
	}
	if err := a.validDefaults(); err != nil {
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

// HasDocument reports a missing document as an error of kind Invalid.
func HasDocument(doc *document.Document) error {
	return scripts.HasDocument(doc)
}

// validChoices checks the values of types that have few values.
func (a *Authority) validChoices() error {
	for _, req := range []struct {
		lifetime  turnstone.Lifetime
		snapshot  document.Snapshot
		isolation document.Isolation
		steps     turnstone.Checkpoint
	}{
		{a.Request.Lifetime, a.Request.Snapshot, "", a.Request.Checkpoint},
		{a.front().Lifetime, a.front().Snapshot, a.front().Isolation, a.front().Checkpoint},
	} {
		if err := errors.Join(
			oneOf("lifetime", req.lifetime, turnstone.LifetimeTurn, turnstone.LifetimeSession),
			oneOf("snapshot", req.snapshot, document.SnapshotNone, document.SnapshotVM),
			oneOf("isolation", req.isolation, document.IsolationAny,
				document.IsolationMicroVM),
			oneOf("checkpoint", req.steps, turnstone.CheckpointNone,
				turnstone.CheckpointStep)); err != nil {
			return err
		}
	}
	return nil
}

// oneOf reports a value that is neither empty nor one of values.
func oneOf[T ~string](key string, value T, values ...T) error {
	if value == "" || slices.Contains(values, value) {
		return nil
	}
	var names []string
	for _, v := range values {
		names = append(names, string(v))
	}
	return invalid(key, "%q is not a valid value", string(value)).
		WithHint("use " + strings.Join(names, " or "))
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
