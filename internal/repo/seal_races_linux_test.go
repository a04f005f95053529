package repo_test

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostkeys"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
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

// TestStartDuringSeal: a turn that begins while its session is sealed has a title in the clear, and
// its files would be in the clear, too.
func TestStartDuringSeal(t *testing.T) {
	p := repotest.NewSealed(t, nil)
	ctx := t.Context()
	s := p.Session("s")
	p.Turn(s, "main", files(nil)...)
	sealing := repotest.Open(p.Repo.Dir)
	sealing.Keys = repotest.NewKeys(false)
	t.Cleanup(func() { _ = sealing.Close() })
	_, err := p.CS.DB.Start(ctx, session.StartTurn{Session: s.ID, Branch: "main", Title: marker,
		Before: func(turnstone.DomainID) {
			ok[*turnstone.SealReport](t)(sealing.Seal(ctx, []string{"s"}))
		}})
	if turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a turn began in the clear: %v", err)
	}
	if in := found(t, p.Repo.Dir.Root, marker); len(in) > 0 {
		t.Errorf("%q", in)
	}
}

// TestShredSweepsMemory: what a killed process has left in memory goes with the session, and what
// another process uses, or is about to use, stays.
func TestShredSweepsMemory(t *testing.T) {
	p := repotest.NewSealed(t, repotest.NewKeys(false))
	ctx := t.Context()
	p.Turn(p.Session("s"), "main", files(nil)...)
	stop, swept := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if _, err := p.Repo.GC(ctx, turnstone.GCRequest{}); err != nil {
				swept <- err
				return
			}
			select {
			case <-stop:
				swept <- nil
				return
			default:
			}
		}
	}()
	for range 200 {
		dir, remove, err := repo.MemoryFolder(p.Repo.Dir, repo.MemoryOfMachines, "used")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
			remove()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	left := ok[string](t)(p.Repo.Dir.Memory(repo.MemoryOfSandboxes, "sb_killed"))
	if err := os.WriteFile(filepath.Join(left, "1.out"), []byte(marker), 0o600); err != nil {
		t.Fatal(err)
	}
	used, remove, err := repo.MemoryFolder(p.Repo.Dir, repo.MemoryOfSandboxes, "sb_runs")
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	ok[turnstone.Session](t)(p.Repo.Shred(ctx, "s"))
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s stays: %v", left, err)
	}
	if _, err := os.Stat(used); err != nil {
		t.Error(err)
	}
}
