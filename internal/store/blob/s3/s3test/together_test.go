package s3test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestBuildTogether: tests that want the server at the same time, in a folder without one, all get it, and
// one of them builds it.
func TestBuildTogether(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example\n")
	write("go", "#!/bin/sh\n# go build: the program is in the place that follows -o\n"+
		"echo built >>'"+dir+"/builds'\nuntil [ \"$1\" = -o ]; do shift; done\nsleep 0.2\necho program >\"$2\"\n")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	errs := make(chan error)
	for range 4 {
		go func() {
			program, err := Build(t.Context(), dir, dir)
			if err == nil {
				_, err = os.Stat(program)
			}
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "builds")); string(b) != "built\n" {
		t.Errorf("%q, %v", b, err)
	}
}
