package service

import (
	"os"
	"path/filepath"
	"testing"
)

// TestForgotten checks that a shim is forgotten only when the folders of its sandbox and of all its
// containers are gone.
func TestForgotten(t *testing.T) {
	s, _ := fakeService(t)
	dir := t.TempDir()
	sandbox, task := filepath.Join(dir, "sandbox"), filepath.Join(dir, "task")
	s.containers["a"] = &container{id: "a", bundle: task}
	for _, d := range []string{sandbox, task} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{sandbox, task} {
		if s.forgotten(sandbox) {
			t.Errorf("forgotten with %s", gone)
		}
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	if !s.forgotten(sandbox) {
		t.Error("not forgotten")
	}
}
