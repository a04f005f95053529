//go:build linux

package repo_test

import (
	"os"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostkeys"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestShredKeepsJoined: a session that a process is sealing or importing into the domain of all
// sessions is not in the database yet. Another process that shreds the domain's only session must not
// destroy the key that the new one needs.
func TestShredKeepsJoined(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	if err := os.WriteFile(dir.Path("config.toml"), []byte("[keys]\nseal = \"one\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	process := func() *repotest.Past {
		k := hostkeys.New(dir, nil, "")
		r := repotest.Open(dir)
		r.Keys = k
		t.Cleanup(func() { _ = r.Close(); k.Close() })
		return repotest.On(t, r)
	}
	t.Cleanup(func() { _ = dir.ForgetMemory() })
	a, b := process(), process()
	ctx := t.Context()
	s := a.Session("s")
	a.Turn(s, "main", files(nil)...)

	_, joined, err := b.CS.NewDomain(ctx)
	if err != nil || joined != s.Domain {
		t.Fatal(joined, err)
	}
	if _, err := a.Repo.Shred(ctx, "s"); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a domain that a session is being added to: %v", err)
	}
	other := b.Session("other")
	b.CS.Settle(joined)
	if other.Domain != joined {
		t.Fatal(other.Domain)
	}
	b.Turn(other, "main", files(nil)...)
	if _, err := a.Repo.Shred(ctx, "s"); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a domain with another session: %v", err)
	}
	if text, err := read(t, b.Repo, "other", "/"+marker+"-name"); text != marker {
		t.Errorf("%q %v", text, err)
	}
	ok[turnstone.Session](t)(a.Repo.RemoveSession(ctx, "other"))
	ok[turnstone.Session](t)(a.Repo.Shred(ctx, "s"))
	if again := b.Session("again"); again.Domain == joined {
		t.Error("a new session is in the domain that was destroyed")
	}
}
