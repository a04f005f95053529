package place

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestRefusedTurnBeginsNoSession checks that an impossible branch leaves nothing behind.
func TestRefusedTurnBeginsNoSession(t *testing.T) {
	h := host.New(&statedir.Dir{Root: t.TempDir()}, host.Options{}, nil)
	p := repotest.On(t, h.Repo)
	t.Cleanup(func() { _ = h.Repo.Close() })
	ctx := t.Context()
	for _, session := range []string{"new", ""} {
		id := turnstone.NewTurnID()
		if _, err := Take(ctx, p.CS, Request{ID: id, Title: "a turn", Session: session,
			Branch: "nowhere", Repo: h.Repo}); turnstone.KindOf(err) != turnstone.KindNotFound ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v (%s)", session, err, turnstone.HintOf(err))
		}
	}
	if all := repotest.OK[[]turnstone.SessionInfo](t)(h.Repo.Sessions(ctx)); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}
