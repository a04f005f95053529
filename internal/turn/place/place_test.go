package place

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/hostkeys"
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

// TestAbandonRemovesFirst: a turn that is refused after it got its place removes the session that was
// created for it, and leaves one that was there.
func TestAbandonRemovesFirst(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	if err := os.WriteFile(dir.Path("config.toml"), []byte("[keys]\nseal = \"session\"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	h := host.New(dir, host.Options{}, nil)
	h.Repo.Keys = hostkeys.New(dir, nil, "")
	p := repotest.On(t, h.Repo)
	t.Cleanup(func() {
		_ = h.Repo.Close()
		if memory, err := dir.Memory(); err == nil {
			_ = os.RemoveAll(memory)
		}
	})
	ctx := t.Context()
	there := p.Session("there")
	for _, name := range []string{"new", "", "there"} {
		at, err := Take(ctx, p.CS, Request{ID: turnstone.NewTurnID(), Title: "a turn", Session: name,
			Branch: "main", Repo: h.Repo})
		if err != nil || at.Turn.Domain == "" {
			t.Fatal(err)
		}
		at.Abandon(ctx)
	}
	if all := repotest.OK[[]turnstone.SessionInfo](t)(h.Repo.Sessions(ctx)); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	keys := repotest.OK[[]string](t)(filepath.Glob(dir.Path("domains", "*.json")))
	if len(keys) != 1 || filepath.Base(keys[0]) != string(there.Domain)+".json" {
		t.Errorf("%v", keys)
	}
}
