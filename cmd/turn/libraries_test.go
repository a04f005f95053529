package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// TestLibrariesReadNoVariable checks that variables for turn do not affect a program that imports
// the libraries.
func TestLibrariesReadNoVariable(t *testing.T) {
	reads := regexp.MustCompile(`(Getenv|LookupEnv)\("(TURN_|PIP_|npm_|NPM_)`)
	// Programs of their own, what only tests import, and the client, which finds a server as turn does.
	own := regexp.MustCompile(
		`^(cmd/|client/|internal/bench/|internal/testhome/|internal/turntest/|runsc/)|_test\.go$`)
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel("../..", path)
		if err == nil && d.IsDir() && name != "." && strings.HasPrefix(name, ".") {
			return filepath.SkipDir // git's files, and the sources of gVisor
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || own.MatchString(name) {
			return err
		}
		seen++
		b, err := os.ReadFile(path)
		if !bytes.Contains(b, []byte(`env("`)) && !bytes.Contains(b, []byte(`Env("`)) {
			return err // the expression takes long
		}
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
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{},
		ocitest.Tar(t, ocitest.Program("bin/sh", "#!"))))
	a, read := piped(t)
	a.Env.Dir, a.Env.DebianMirror = t.TempDir(), "[not a mirror]"
	a.Main(new(commandLine), []string{"template", "pull", reg.Host + "/x:1"})
	if out := read(); !strings.Contains(out, "is not the address of a mirror") {
		t.Error(out)
	}
}
