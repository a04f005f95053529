package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
	"turnstone.dev/turnstone/sandboxes"
)

// TestEnvironmentOfHolder checks that a holder reads from its environment the options of the
// executor that starts it. The state directory and the holder itself are arguments.
func TestEnvironmentOfHolder(t *testing.T) {
	var o executor.Options
	v := reflect.ValueOf(&o).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.String {
			f.SetString("value of " + v.Type().Field(i).Name)
		}
	}
	env := map[string]string{}
	for _, kv := range o.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	got := environment(func(name string) string { return env[name] })
	got.Dir, got.Holder = o.Dir, sandboxes.Holder{}
	if !reflect.DeepEqual(got.Options, o) {
		t.Errorf("the holder has %+v, and its caller %+v", got.Options, o)
	}
	if len((executor.Options{}).Environ()) != 0 {
		t.Errorf("options that are not set are passed on: %q", executor.Options{}.Environ())
	}
}

// TestEnvironmentFirst checks that of two variables with one destination the first with a value
// wins.
func TestEnvironmentFirst(t *testing.T) {
	env := map[string]string{"npm_config_registry": "a", "NPM_CONFIG_REGISTRY": "b"}
	get := func(name string) string { return env[name] }
	if s := environment(get); s.NpmRegistry != "a" {
		t.Error(s.NpmRegistry)
	}
	delete(env, "npm_config_registry")
	if s := environment(get); s.NpmRegistry != "b" {
		t.Error(s.NpmRegistry)
	}
}

// TestLibrariesReadNoVariable checks that variables for turn do not affect a program that imports
// the libraries.
func TestLibrariesReadNoVariable(t *testing.T) {
	reads := regexp.MustCompile(`(Getenv|LookupEnv)\("(TURN_|PIP_|npm_|NPM_)`)
	// Programs of their own, and what only tests import.
	own := regexp.MustCompile(`^(cmd/|internal/bench/|internal/testhome/|internal/turntest/|runsc/)|_test\.go$`)
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel("../..", path)
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || own.MatchString(name) {
			return err
		}
		seen++
		b, err := os.ReadFile(path)
		for i, line := range strings.Split(string(b), "\n") {
			if reads.MatchString(line) {
				t.Errorf("%s:%d: %s", name, i+1, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil || seen < 300 {
		t.Errorf("%d files were read: %v", seen, err)
	}
}

// TestPullFromMirror checks that an image without bash gets Debian's, from the named mirror.
func TestPullFromMirror(t *testing.T) {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip(err)
	}
	reg := ocitest.Serve(t, nil)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, ocitest.Tar(t, ocitest.Program("bin/sh", "#!"))))
	a, read := piped(t)
	a.env.Dir, a.env.DebianMirror = t.TempDir(), "[not a mirror]"
	a.main([]string{"template", "pull", reg.Host + "/x:1"})
	if out := read(); !strings.Contains(out, "is not the address of a mirror") {
		t.Error(out)
	}
}
