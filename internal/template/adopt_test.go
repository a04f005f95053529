package template

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

const adopted = `name = "mine"
description = "of another machine"
base = "debian:bookworm"
packages = ["jq", "curl"]
env = { A = "1" }
network = ["example.org:443"]
[machine]
cpus = 2
memory = "3GiB"
[[files]]
path = "/etc/x"
mode = "0755"
source = "x"
`

// other returns the spec of another machine, as read from a file.
func other(t testing.TB, text string) *Spec {
	t.Helper()
	dir := t.TempDir()
	for name, b := range map[string]string{specFile: text, "x": "\x00\xff\x80binary"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec, err := readSpec(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	out := &Spec{}
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAdopt checks that a spec of another machine is built and registered after its check, and
// replaces no other spec.
func TestAdopt(t *testing.T) {
	s, n := counting(t)
	spec := other(t, adopted)
	tmpl, err := s.Adopt(context.Background(), spec, nil)
	if err != nil || n.Load() != 1 || tmpl.Digest != spec.Digest() {
		t.Fatalf("%+v, %v", tmpl, err)
	}
	if specs, err := s.Registered("mine"); err != nil || len(specs) != 1 || !same(specs[0], spec) {
		t.Errorf("%v, %v", specs, err)
	}
	if specs, err := s.Registered("base"); err != nil || len(specs) != 0 {
		t.Errorf("%v, %v", specs, err)
	}
	if again, err := s.Adopt(context.Background(), spec, nil); err != nil || n.Load() != 1 ||
		again.Digest != tmpl.Digest {
		t.Errorf("%v", err)
	}
	for what, change := range map[string]func(*Spec){
		"of this name":  func(s *Spec) { s.Packages = []string{"jq"} },
		"built in":      func(s *Spec) { s.Name = "base" },
		"a path":        func(s *Spec) { s.Name = "../x" },
		"no base":       func(s *Spec) { s.Base = "/etc" },
		"an option":     func(s *Spec) { s.Packages = []string{"--allow"} },
		"a file above":  func(s *Spec) { s.Files[0].Path = "/a/../../x" },
		"a mode":        func(s *Spec) { s.Files[0].Mode = 1 << 20 },
		"twice":         func(s *Spec) { s.Files = append(s.Files, s.Files[0]) },
		"unsorted":      func(s *Spec) { s.Name, s.Packages = "new", []string{"jq", "curl"} },
		"a huge disk":   func(s *Spec) { s.Machine.Disk = 1 << 60 },
		"no host":       func(s *Spec) { s.Network = []string{"http://x/"} },
		"a shell in it": func(s *Spec) { s.Env = map[string]string{"A B": "x"} },
	} {
		bad := other(t, adopted)
		change(bad)
		if tmpl, err := s.Adopt(context.Background(), bad,
			nil); turnstone.KindOf(err) != turnstone.KindInvalid || n.Load() != 1 {
			t.Errorf("%s: %+v, %v", what, tmpl, err)
		}
	}
	names, err := s.Names()
	if err != nil || strings.Contains(strings.Join(names, " "), "new") {
		t.Errorf("%v, %v", names, err)
	}
}

// FuzzReread checks that any spec in a file is either rejected, or equal to a result of Parse.
func FuzzReread(f *testing.F) {
	b, err := json.Marshal(other(f, adopted))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"name":"a","base":"oci:x","packages":null,"workdir":"","commands":["true"],"lock":{"version":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &Spec{}
		if json.Unmarshal(b, s) != nil {
			return
		}
		checked, err := s.reread()
		if err != nil {
			return
		}
		if again, err := checked.reread(); err != nil || again.Digest() != s.Digest() ||
			!nameRule.MatchString(again.Name) {
			t.Fatalf("%+v became %+v, %v", s, again, err)
		}
		for _, f := range checked.Files {
			if !cleanAbsolute(f.Path) || f.Mode&^0o7777 != 0 {
				t.Fatalf("%+v", f)
			}
		}
	})
}
