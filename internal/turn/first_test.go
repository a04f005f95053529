package turn

import (
	"os"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestFirstReceipt: a turn has a receipt as soon as its session has it, also a sealed one, if its
// executor is killed before anything else.
func TestFirstReceipt(t *testing.T) {
	for _, keys := range []repo.Keys{nil, repotest.NewKeys(false)} {
		dir := &statedir.Dir{Root: t.TempDir()}
		x := testRunner(dir)
		x.host.Repo.Keys = keys
		if err := os.WriteFile(dir.Path(config.File), []byte("[network]\ndefault = \"off\"\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		repotest.On(t, x.host.Repo).TemplateOf("small", "workdir = \"/\"", map[string]string{"/a": "b"})
		for _, session := range []string{"", "named"} {
			id := turnstone.NewTurnID()
			r, err := x.begin(t.Context(), plan.Request{ID: id, Session: session, Image: "small",
				Document: parse(t, "# A qzmarker\n\n```bash\ntrue\n```\n")}, nil, nil, "", nil)
			if err != nil {
				t.Fatal(err, turnstone.HintOf(err))
			}
			// as after kill -9: the kernel releases its locks
			if err := x.host.Repo.Close(); err != nil {
				t.Fatal(err)
			}
			r.folder.Close()
			again := repo.New(dir, "", x.host.Templates)
			again.Keys = keys
			rep, resumable, err := again.Ended(t.Context(), id)
			if err != nil || resumable || rep.Result != turnstone.ResultError ||
				!strings.Contains(rep.Receipt, "# A qzmarker\n") ||
				!strings.Contains(rep.Receipt, "error: "+beforeFirst+"\n") {
				t.Errorf("session %q, sealed %v: %+v %v", session, keys != nil, rep, err)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
			x = testRunner(dir)
			x.host.Repo.Keys = keys
		}
	}
}
