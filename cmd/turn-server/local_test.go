package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"turnstone.dev/turnstone/internal/cli/servecmd"
)

// TestLocalListensNowhere: whatever the file of settings says, turn serve --local has no address.
func TestLocalListensNowhere(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "server.toml"), []byte("[listen]\naddress = \"127.0.0.1:1\"\n"+
		"[e2b]\nlisten = \"127.0.0.1:2\"\n[mcp]\nlisten = \"127.0.0.1:3\"\n"+
		"[telemetry]\nlisten = \"127.0.0.1:4\"\n[peers]\nlisten = \"127.0.0.1:5\"\n"), 0o600))
	c, err := (&serveCmd{Flags: servecmd.Flags{Local: true}}).settings(dir)
	check(t, err)
	n := 0
	var walk func(v reflect.Value, name string)
	walk = func(v reflect.Value, name string) {
		for i := range v.NumField() {
			f, tag := v.Field(i), v.Type().Field(i)
			switch {
			case f.Kind() == reflect.Struct:
				walk(f, name+tag.Name+".")
			case slices.Contains([]string{"address", "peer"}, tag.Tag.Get("kind")):
				if n++; f.Len() != 0 { // a text or a list
					t.Errorf("%s%s is %v", name, tag.Name, f)
				}
			}
		}
	}
	walk(reflect.ValueOf(*c), "")
	if n < 6 {
		t.Errorf("only %d settings are addresses", n)
	}
	if _, err := (&serveCmd{Flags: servecmd.Flags{Local: true, E2B: "127.0.0.1:0"}}).settings(
		t.TempDir()); err == nil {
		t.Error("--local serves E2B's clients")
	}
}
