package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
)

// TestHolder checks that without a holder in the options the installed turn holds sandboxes, if it
// has this module's version. Another program, or the running program, is never started instead.
func TestHolder(t *testing.T) {
	for name, c := range map[string]struct{ says, want string }{
		"none":            {"", "executable file not found"},
		"another version": {`{"version": "0.0.0-other"}`, `is version "0.0.0-other"`},
		"another program": {"turn 1.0", "invalid character"},
		"this version":    {fmt.Sprintf(`{"version": %q}`, turnstone.Version), ""},
	} {
		dir := t.TempDir()
		if c.says != "" {
			script := "#!/bin/sh\n[ \"$*\" = 'version --json' ] && echo '" + c.says + "'\n"
			if err := os.WriteFile(filepath.Join(dir, "turn"), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir)
		h := &statedir.Dir{Root: t.TempDir()}
		got, err := New(h, Options{Runsc: "/srv/runsc"}, nil).Holder(t.Context())
		if c.want == "" {
			if err != nil || got.Path != filepath.Join(dir, "turn") ||
				strings.Join(got.Args, " ") != "turn sandbox hold" ||
				!slices.Contains(got.Env, "TURN_RUNSC=/srv/runsc") {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		}
		if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%s)", name, err, turnstone.HintOf(err))
		}
	}
	own := sandboxes.Holder{Path: "/srv/holder", Args: []string{"holder"}, Env: []string{"A=b"}}
	got, err := New(&statedir.Dir{Root: t.TempDir()},
		Options{Holder: own, Store: "s3://x"}, nil).Holder(t.Context())
	if err != nil || got.Path != own.Path || !slices.Contains(got.Env, "TURN_STORE=s3://x") ||
		got.Env[len(got.Env)-1] != "A=b" {
		t.Errorf("%+v, %v", got, err)
	}
}
