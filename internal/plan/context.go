package plan

import (
	"maps"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/secret"
)

// context checks p's use of sessions and secrets.
func (p *Plan) context(secrets []string) (err error) {
	names := map[string]string{"session": p.Session, "branch": p.Branch, "home": p.Home}
	for what, name := range names {
		if name == "" {
			continue
		}
		if err := turnstone.CheckName(what, name); err != nil {
			return turnstone.NewError(op, turnstone.KindInvalid, "", err)
		}
	}
	for _, kv := range secrets {
		if name, _, ok := strings.Cut(kv, "="); !ok || !validEnvName(name) {
			return invalid("--secret", "a secret has an invalid name for a variable")
		}
	}
	if p.Secrets, err = secret.New(secrets); err != nil {
		return err
	}
	return p.together()
}

// together rejects values that exclude each other.
func (p *Plan) together() error {
	const kept, stays = "snapshot: vm", "lifetime: session"
	hidden := p.Secrets != nil
	snapshot, session := p.Snapshot == document.SnapshotVM, p.Lifetime == turnstone.LifetimeSession
	steps := p.Checkpoint == turnstone.CheckpointStep
	for _, c := range []struct {
		both               bool
		subject, why, hint string
	}{
		{hidden && snapshot, kept, "the machine's memory would hold the secrets",
			"leave out --secret, or the snapshot"},
		{hidden && session, stays, "the secrets would stay in the paused machine",
			"leave out --secret, or run this turn with lifetime: turn"},
		{session && snapshot, kept, "a machine that stays is not kept a second time",
			"run the turn with lifetime: turn, or leave out the snapshot"},
		{snapshot && p.Home != "", kept, "a home changes independently of the machine",
			"leave out the home, or the snapshot"},
		{session && p.Home != "", "home " + p.Home,
			"a machine that stays would keep the home from all others",
			"leave out home:, or run this turn with lifetime: turn"},
		{hidden && p.Home != "", "home " + p.Home,
			"a home is not searched, and it would keep the secrets",
			"leave out --secret, or the home"},
		{steps && session, stays, "a session's machine is not kept between steps",
			"run the turn with lifetime: turn, or with checkpoint: none"},
		{steps && snapshot, kept, "a machine is kept as a difference to the turn's beginning, " +
			"which a resumed turn's machine is not", "leave out the snapshot, or checkpoint: step"},
		{steps && p.Home != "", "home " + p.Home,
			"a home changes at the end of a turn alone, so an interrupted turn would lose its part",
			"leave out the home, or use checkpoint: none"},
		{p.Retry > 0 && session, stays, "a session's machine ends with its executor",
			"run the turn with lifetime: turn, or leave out retry:"},
		{p.Retry > 0 && p.Home != "", "home " + p.Home,
			"a home changes at the end of a turn alone", "leave out the home, or retry:"},
		{p.Retry > 0 && hidden, "retry:", "secrets are not stored, so the turn could not start again",
			"leave out --secret, or retry:"},
		{steps && p.Determinism != nil, "checkpoint: step",
			"a deterministic turn runs from its beginning to its end, because a resumed machine " +
				"would draw other numbers", "use checkpoint: none, and run the turn again instead"},
	} {
		if c.both {
			return turnstone.Errorf(op, turnstone.KindInvalid, c.subject, "%s", c.why).
				WithHint(c.hint)
		}
	}
	if session && p.Session == "" {
		return noSession(stays)
	}
	return nil
}

// noSecret rejects a secret's value in the parts of the request that are stored with the turn.
func (p *Plan) noSecret(req Request) error {
	if p.Secrets == nil {
		return nil
	}
	at := map[string]string{"the document": string(req.Document.Clean()),
		"the document's name": req.Document.Name, "the session's name": p.Session,
		"the branch's name": p.Branch, "the home's name": p.Home, "the image's name": p.Asked}
	for _, kv := range p.Env {
		name, _, _ := strings.Cut(kv, "=")
		at["env "+name] = kv
	}
	for _, t := range append(slices.Clone(req.Add), req.Get...) {
		at["a file's name"] += t.Path + "\n" + t.Dest + "\n"
	}
	words := p.Secrets.Written()
	for _, where := range slices.Sorted(maps.Keys(at)) {
		if name := words.In(at[where]); name != "" {
			return turnstone.Errorf(op, turnstone.KindInvalid, words.Mask(where),
				"%w (%s), and would be kept with it", secret.ErrFound, name).
				WithHint("take it out there; steps have it as $" + name)
		}
	}
	return nil
}

func validEnv(env []string) error {
	for _, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || !validEnvName(name) || strings.ContainsRune(kv, 0) {
			return invalid("env", "%q is not NAME=VALUE", kv).
				WithHint("use a name of letters, digits and _ that does not begin with a digit")
		}
	}
	return nil
}

func validEnvName(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
