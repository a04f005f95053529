package paused

import (
	"os"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
)

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

// newPast returns a host on which turns are made without machines.
func newPast(t *testing.T) (*repotest.Past, *host.Host) {
	t.Helper()
	h := host.New(&statedir.Dir{Root: t.TempDir()}, host.Options{}, nil)
	t.Cleanup(func() {
		if err := h.Repo.Close(); err != nil {
			t.Error(err)
		}
	})
	return repotest.On(t, h.Repo), h
}

// TestHeldEndsWithItsSession checks that the files about paused machines are removed with the
// session or branch, even if the machine has ended, and that other files remain.
func TestHeldEndsWithItsSession(t *testing.T) {
	p, x := newPast(t)
	ctx := t.Context()
	s, other := p.Session("s"), p.Session("other")
	if _, err := x.Dir.MkdirAll("machines"); err != nil {
		t.Fatal(err)
	}
	p.Turn(s, "main")
	ok[turnstone.Branch](t)(x.Repo.Fork(ctx, "s@1", "b"))
	for _, path := range []string{pathOf(x.Dir, s.ID, "main"), pathOf(x.Dir, s.ID, "b"),
		pathOf(x.Dir, other.ID, "main")} {
		h := &Machine{host: x, path: path, Sandbox: turnstone.NewSandboxID()}
		if err := h.write(); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int { return len(ok[[]os.DirEntry](t)(os.ReadDir(x.Dir.Path("machines")))) }
	if err := RemoveBranch(ctx, x, "s", "b"); err != nil || left() != 2 {
		t.Errorf("%v, %d left", err, left())
	}
	lock := ok[*statedir.Lock](t)(statedir.TryAcquire(pathOf(x.Dir, s.ID, "main") + ".lock"))
	if err := End(ctx, x, s.ID, ""); err != nil || left() != 3 { // a turn uses the machine
		t.Errorf("%v, %d left", err, left())
	}
	lock.Release()
	if _, err := RemoveSession(ctx, x, "s"); err != nil || left() != 1 {
		t.Errorf("%v, %d left", err, left())
	}
	for name, kind := range map[string]turnstone.Kind{"main": turnstone.KindInvalid,
		"../../x": turnstone.KindInvalid, "": turnstone.KindInvalid} {
		p.Turn(other, "main")
		if _, err := ForkLive(ctx, x, "other", name); turnstone.KindOf(err) != kind {
			t.Errorf("fork to %q: %v", name, err)
		}
	}
}
