package repo_test

import (
	"os"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestRecordThatIsNotThere checks that a turn of the session that is missing in the store is
// reported as damage, not as a wrong name.
func TestRecordThatIsNotThere(t *testing.T) {
	p := repotest.New(t)
	p.Turn(p.Session("s"), "main", treetest.Texts(map[string]string{"/a": "one"})...)
	if err := p.Repo.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(p.Repo.Dir.Path("store")); err != nil {
		t.Fatal(err)
	}
	again := repotest.Open(p.Repo.Dir)
	defer func() { _ = again.Close() }()
	_, err := again.Receipt(t.Context(), "s@1")
	if turnstone.KindOf(err) != turnstone.KindIntegrity ||
		!strings.Contains(turnstone.HintOf(err), "TURN_STORE") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }
