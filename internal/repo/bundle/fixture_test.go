package bundle

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

var update = flag.Bool("update", false, "write testdata that other packages' tests import")

// TestFixture keeps cmd/turn/testdata/session.tzst readable: a session without machines,
// which the scripts of turn import. With -update it is made anew.
func TestFixture(t *testing.T) {
	const path = "../../../cmd/turn/testdata/session.tzst"
	if *update {
		p := repotest.New(t)
		s := p.Session("research")
		p.Turn(s, "main", treetest.Texts(map[string]string{"/workspace/list": "first\n",
			"/workspace/out/a.csv": "1,2\n"})...)
		p.Turn(s, "main", treetest.Texts(map[string]string{"/workspace/list": "first\nsecond\n",
			"/workspace/b": "b\n"})...)
		ok[turnstone.Branch](t)(p.Repo.Fork(t.Context(), "research@1", "fix/auth"))
		p.Turn(s, "fix/auth", treetest.Texts(map[string]string{"/workspace/list": "other\n",
			"/workspace/out/a.csv": "1,2\n"})...)
		ok[turnstone.Tag](t)(p.Repo.Tag(t.Context(), "research@1", "v1/rc"))
		var b bytes.Buffer
		ok[*turnstone.ExportReport](t)(host(p.Repo).Export(t.Context(),
			ExportRequest{Session: "research", Full: true}, &b))
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	p := repotest.New(t)
	rep := ok[*turnstone.ImportReport](t)(host(p.Repo).Import(t.Context(), ImportRequest{}, f))
	if rep.Turns != 3 || !rep.Fresh {
		t.Errorf("%+v", rep)
	}
}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

// host returns a host with enough space.
func host(r *repo.Repo) Host {
	return Host{Repo: r, Templates: repotest.Templates(r), Room: func() error { return nil }}
}
