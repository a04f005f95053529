package turn

import (
	"os"
	"testing"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
)

// A past is a state directory with turns that are made without machines.
type past struct {
	*repotest.Past
	t  *testing.T
	x  *Runner
	cs *repo.ContextStore
}

func newPast(t *testing.T) *past {
	t.Helper()
	x := testRunner(&statedir.Dir{Root: t.TempDir()})
	t.Cleanup(func() {
		if err := x.host.Repo.Close(); err != nil {
			t.Error(err)
		}
	})
	p := repotest.On(t, x.host.Repo)
	return &past{Past: p, t: t, x: x, cs: p.CS}
}

// testRunner returns a runner on h. Its options are those that the tests of a whole host set in the
// environment.
func testRunner(h *statedir.Dir) *Runner {
	return New(host.New(h, host.Options{Dir: h.Root, Store: os.Getenv("TURN_STORE"),
		Kernel: os.Getenv("TURN_KERNEL"), KernelModules: os.Getenv("TURN_KERNEL_MODULES")}, nil))
}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

func random(n int, seed byte) string { return repotest.Random(n, seed) }

func parse(t testing.TB, src string) *document.Document {
	t.Helper()
	d, err := document.Parse("test.md", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return d
}
