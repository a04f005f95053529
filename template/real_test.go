package template

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
)

// testHome is where tests of all packages keep what is costly to make:
// $TURN_TEST_HOME, else turnstone-test in the user's cache folder.
func testHome(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds real templates")
	}
	dir := os.Getenv("TURN_TEST_HOME")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "turnstone-test")
	}
	return dir
}

func realTemplate(t *testing.T, name string) *Template {
	t.Helper()
	s := NewStore(filepath.Join(testHome(t), "templates"))
	tmpl, err := s.Ensure(context.Background(), name, func(what string) { t.Log(what) })
	if err != nil {
		t.Fatalf("%v\n%s", err, turnstone.HintOf(err))
	}
	return tmpl
}

func TestBuiltInTemplates(t *testing.T) {
	for _, name := range []string{"base", "python"} {
		tmpl := realTemplate(t, name)
		t.Logf("%s: %s, %d packages, %s", name, turnstone.Bytes(tmpl.Size).Human(), len(tmpl.Packages), tmpl.BuildTime)
	}
}
