package backup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/repo/location"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
)

// TestDocumentedDump runs the commands of docs/shared.md: another database has the sessions of the dump,
// of the user and of a tenant, and not those after it. It is the same database for its bucket.
func TestDocumentedDump(t *testing.T) {
	open := func(url, name string) *session.DB {
		db := repotest.OK[*session.DB](t)(location.Sessions(t.Context(), &statedir.Dir{Root: t.TempDir()}, url))
		if name != "" {
			_, err := db.Create(t.Context(), name)
			check(t, err)
		}
		return db
	}
	from, to := pgtest.New(t, "fsync=off"), pgtest.New(t, "fsync=off")
	own, tenant := open(from.URL, "mine"), open(location.OfTenant(from.URL, "ada"), "hers")
	id, _, err := own.Identity(t.Context())
	check(t, err)
	check(t, own.Claim(t.Context(), "s3://bucket/turns"))

	file := filepath.Join(t.TempDir(), "turn.dump")
	documented(t, "dump", from.URL, file)
	_, err = own.Create(t.Context(), "later")
	check(t, err)
	for _, db := range []*session.DB{own, tenant} {
		check(t, db.Close())
	}
	documented(t, "restore_dump", to.URL, file)

	for url, want := range map[string]string{to.URL: "mine", location.OfTenant(to.URL, "ada"): "hers"} {
		db := open(url, "")
		all, err := db.List(t.Context())
		check(t, err)
		if len(all) != 1 || all[0].Name != want {
			t.Errorf("restored: %+v, want %s", all, want)
		}
		if again, store, err := db.Identity(t.Context()); want == "mine" && (err != nil || again != id ||
			store != "s3://bucket/turns") {
			t.Errorf("the restored database is %s with %s: %v", again, store, err)
		}
		_, err = db.Create(t.Context(), "new")
		check(t, err)
		check(t, db.Close())
	}
}

// documented runs a function of docs/shared.md.
func documented(t *testing.T, args ...string) {
	t.Helper()
	text := string(repotest.OK[[]byte](t)(os.ReadFile("../../docs/shared.md")))
	_, text, _ = strings.Cut(text, "<!-- run: shared -->\n```bash\n")
	text, _, found := strings.Cut(text, "```")
	if !found {
		t.Fatal("docs/shared.md has no commands")
	}
	cmd := exec.Command("sh", append([]string{"-ec", text + `"$@"`, "sh"}, args...)...)
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	cmd.Env = append(os.Environ(), "PATH="+strings.Join(append([]string{os.Getenv("PATH")}, bins...), ":"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", args[0], err, out)
	}
}
