package engine

import (
	"os"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
)

// testEngine returns an engine on h. Its options are those that the tests of a whole host set in
// the environment; its holder is this program: see TestMain.
func testEngine(h *statedir.Dir) *Engine {
	return New(h, Options{Dir: h.Root, Store: os.Getenv("TURN_STORE"),
		Kernel: os.Getenv("TURN_KERNEL"), KernelModules: os.Getenv("TURN_KERNEL_MODULES"),
		Holder: sandboxes.Holder{Path: "/proc/self/exe", Args: []string{"turn", "sandbox",
			"hold"}}})
}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

func parse(t testing.TB, src string) *document.Document {
	t.Helper()
	d, err := document.Parse("test.md", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func step(attrs, script string) string { return "```bash " + attrs + "\n" + script + "\n```\n\n" }

// observer is a turn.Observer that calls onStep for each step; nil: it does nothing.
type observer struct{ onStep func(step *document.Step) }

func (*observer) Preparing(string) {}

func (o *observer) StepStarted(s *document.Step) {
	if o.onStep != nil {
		o.onStep(s)
	}
}

func (*observer) StepOutput(*document.Step, turnstone.Stream, []byte) {}

func (*observer) StepFinished(*document.Step, turnstone.StepReport) {}
