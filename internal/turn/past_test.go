package turn

import (
	"os"
	"testing"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
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
	x := New(&statedir.Dir{Root: t.TempDir()})
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	p := repotest.On(t, x.repo)
	return &past{Past: p, t: t, x: x, cs: p.CS}
}

// New returns an executor on h. Its options are those that the tests of a whole host set in the
// environment; its holder is this program: see TestMain.
func New(h *statedir.Dir) *Runner {
	return newRunner(h, Options{Dir: h.Root, Store: os.Getenv("TURN_STORE"),
		Kernel: os.Getenv("TURN_KERNEL"), KernelModules: os.Getenv("TURN_KERNEL_MODULES"),
		Holder: sandboxes.Holder{Path: "/proc/self/exe", Args: []string{"turn", "sandbox", "hold"}}})
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
