package sessions

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node/rights"
)

// TestTokensNarrow sends each command about a session with the key that owns the session and a token
// whose patterns do not match its name: nothing is read or changed. With a pattern that matches, the
// same commands are answered.
func TestTokensNarrow(t *testing.T) {
	s := newScene(t)
	playing := s.serve(player{s.x})
	with := func(session, template auth.Pattern) *rights.Rights {
		p := auth.Principal{Issuer: "i", Tenant: "t", Scopes: auth.AllScopes(),
			Sessions: []auth.Pattern{session}, Templates: []auth.Pattern{template}}
		both := rights.Of("t", auth.Principal{Issuer: "i", Tenant: "t", Scopes: auth.AllScopes(),
			Sessions: []auth.Pattern{auth.Any}, Templates: []auth.Pattern{auth.Any}}, p)
		return &both
	}
	all := methods(t)
	for name, k := range commands(s) {
		if name == "Session.remove" || k.who == operator {
			continue
		}
		narrow, broad := s.mine, s.mine
		narrow.Tokens, broad.Tokens = with("ci-*", "no-*"), with("res*", auth.Any)
		got, err := call(t, s.connect(s.service, narrow), name, all[name], k.params)
		if strings.Contains(got, string(s.research.ID)) || strings.Contains(got, "changed") ||
			strings.Contains(got, `"name":"base"`) {
			t.Errorf("%s tells %.200q", name, got)
		}
		if k.who != anybody && turnstone.KindOf(err) != turnstone.KindDenied {
			t.Errorf("%s: %v", name, err)
		}
		_, err = call(t, s.connect(playing, broad), name, all[name], k.params)
		if err != nil && turnstone.KindOf(err) == turnstone.KindDenied {
			t.Errorf("%s with a token that grants it: %v", name, err)
		}
	}
	narrow := s.mine
	narrow.Tokens = with("ci-*", "no-*")
	_, err := call(t, s.connect(s.service, narrow), "Session.remove", all["Session.remove"],
		map[string]any{"session": "research"})
	if turnstone.KindOf(err) != turnstone.KindDenied {
		t.Error(err)
	}
	// names that a command would make
	ctx := s.store.Limit(t.Context(), narrow, 0)
	for name, ok := range map[string]bool{"ci-new": true, "other": false, "": false} {
		_, err := s.x.CreateSession(ctx, turnstone.NewSessionID(), name)
		if (err == nil) != ok {
			t.Errorf("a session called %q: %v", name, err)
		}
	}
	if g, err := s.x.Session(t.Context(), "research"); err != nil || len(g.Tags) > 1 {
		t.Errorf("%+v %v", g, err)
	}
}
