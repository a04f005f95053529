package collect

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/store/layer"
)

// TestChangesOfHostileGuests checks that nothing is kept with which the next turn could not begin.
func TestChangesOfHostileGuests(t *testing.T) {
	many := make([]string, maxVars+1)
	for i := range many {
		many[i] = "A=1"
	}
	for _, f := range []Changes{
		{Cwd: "/", upper: "lower"}, {Cwd: "/", upper: "../upper"}, {Cwd: "x", upper: "upper"},
		{Cwd: "", upper: "upper"},
		{Cwd: "/a\x00b", upper: "upper"}, {Cwd: "/" + strings.Repeat("x", 5000), upper: "upper"},
		{Cwd: "/", upper: "upper", Env: []string{"A"}},
		{Cwd: "/", upper: "upper", Env: []string{"=A"}},
		{Cwd: "/", upper: "upper", Env: []string{"A=\x00"}},
		{Cwd: "/", upper: "upper", Env: []string{"A=" + strings.Repeat("x", maxEnv)}},
		{Cwd: "/", upper: "upper", Env: many},
	} {
		if err := f.check("sb_x"); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%.40q %.40q: %v", f.Cwd, f.Env, err)
		}
	}
	if err := (&Changes{Cwd: "/a", upper: "upper2",
		Env: []string{"BASH_FUNC_f%%=() { :; }", "A="}}).check("sb_x"); err != nil {
		t.Error(err)
	}
}

// TestBounds checks that all readers of a guest's files have the host's limits, whatever disk was
// requested.
func TestBounds(t *testing.T) {
	b := Bounds{Limits: config.Limits{Entries: 1000, FileSize: 1 << 30}}
	if o := b.upper(turnstone.MaxDisk); o.Entries != 1000 || o.FileSize != 1<<30 {
		t.Errorf("an export: %+v", o)
	}
	if o := b.ext4(); o.Entries != 1000 {
		t.Errorf("a disk: %+v", o)
	}
	o := b.layer(layer.Options{Skip: func(path string) bool { return path == "/x" }})
	if o.MaxEntries != 1000 || o.MaxFile != 1<<30 {
		t.Errorf("a layer: %+v", o)
	}
	if !o.Skip("/x") || !o.Skip("/etc/hosts") || o.Skip("/etc/hosts.allow") {
		t.Error("a layer has files of the machine, or lacks others")
	}
}
