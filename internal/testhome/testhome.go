// Package testhome says where the tests of all packages keep what is costly to
// make. It imports nothing of the project, so that every package's tests can.
package testhome

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir returns $TURN_TEST_HOME, else turnstone-test in the user's cache folder, and
// makes it. With -short the test is skipped: what needs it downloads packages or
// starts a machine.
func Dir(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("downloads packages or starts a machine; run without -short")
	}
	dir := os.Getenv("TURN_TEST_HOME")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "turnstone-test")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	findRunsc(t)
	return dir
}

// findRunsc lets the tests find runsc where the build puts it: it is beside turn, and
// a test's program is not.
func findRunsc(t testing.TB) {
	dir, err := os.Getwd()
	if err != nil || os.Getenv("TURN_RUNSC") != "" {
		return
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		if path := filepath.Join(dir, "bin", "runsc"); exists(path) {
			if err := os.Setenv("TURN_RUNSC", path); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
