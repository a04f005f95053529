package turn

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/sandboxes"
)

var update = flag.Bool("update", false, "write testdata that other packages' tests import")

// TestFixture keeps cmd/turn/testdata/session.tzst readable: a session without machines,
// which the scripts of turn import. With -update it is made anew.
func TestFixture(t *testing.T) {
	const path = "../../cmd/turn/testdata/session.tzst"
	if *update {
		p := newPast(t)
		s := p.session("research")
		p.turn(s, "main", texts(map[string]string{"/workspace/list": "first\n", "/workspace/out/a.csv": "1,2\n"})...)
		p.turn(s, "main", texts(map[string]string{"/workspace/list": "first\nsecond\n", "/workspace/b": "b\n"})...)
		ok[session.Branch](t)(p.x.Fork(t.Context(), "research@1", "fix/auth"))
		p.turn(s, "fix/auth", texts(map[string]string{"/workspace/list": "other\n", "/workspace/out/a.csv": "1,2\n"})...)
		ok[session.Tag](t)(p.x.Tag(t.Context(), "research@1", "v1/rc"))
		var b bytes.Buffer
		ok[*ExportReport](t)(p.x.Export(t.Context(), ExportRequest{Session: "research", Full: true}, &b))
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	p := newPast(t)
	if rep := ok[*ImportReport](t)(p.x.Import(t.Context(), ImportRequest{}, f)); rep.Turns != 3 || !rep.Fresh {
		t.Errorf("%+v", rep)
	}
}

// New returns an executor on h. What the tests of a whole host set in the environment is in its
// options; the holder is this program: see TestMain.
func New(h *statedir.Dir) *Executor {
	return newExecutor(h, Options{Dir: h.Root, Store: os.Getenv("TURN_STORE"), Kernel: os.Getenv("TURN_KERNEL"), KernelModules: os.Getenv("TURN_KERNEL_MODULES"),
		Holder: sandboxes.Holder{Path: "/proc/self/exe", Args: []string{"turn", "sandbox", "hold"}}})
}
