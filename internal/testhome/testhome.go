// Package testhome names the directory in which the tests of all packages keep files that are
// costly to create. It imports no package of the project, so the tests of every package can use it.
package testhome

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Dir returns $TURN_TEST_HOME, or turnstone-test in the user's cache folder, and creates the
// directory. With -short, Dir skips the test: a test with this directory downloads packages or
// starts a machine.
func Dir(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("downloads packages or starts a machine; run without -short")
	}
	dir, err := Path()
	if err != nil {
		t.Fatal(err)
	}
	findRunsc(t)
	// What the variable says is not used: go test notes that it was read, and takes no result from its cache if
	// the programs that tests run have changed.
	_ = os.Getenv("TURN_TEST_PROGRAMS")
	return dir
}

// Path is Dir for a program that is no test.
func Path() (string, error) {
	dir := os.Getenv("TURN_TEST_HOME")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "turnstone-test")
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// findRunsc lets the tests find runsc at TURN_RUNSC, or else where the build puts runsc: a
// driver looks beside the program and in PATH, and a test's program is elsewhere. Programs that
// a test starts, such as turn, get TURN_RUNSC. Its folder comes last in PATH: a turn that was built
// there must not take the place of the one that a script tests.
func findRunsc(t testing.TB) {
	path := os.Getenv("TURN_RUNSC")
	if path == "" {
		path = built()
	}
	if path == "" || strings.HasSuffix(os.Getenv("PATH"), ":"+filepath.Dir(path)) {
		return
	}
	for name, value := range map[string]string{"TURN_RUNSC": path, "PATH": os.Getenv("PATH") +
		":" + filepath.Dir(path)} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
}

// built returns the path of the runsc that the build created, or "".
func built() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			path := filepath.Join(dir, "bin", "runsc")
			if _, err := os.Stat(path); err == nil {
				return path
			}
			return ""
		}
	}
	return ""
}
