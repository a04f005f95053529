package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestNamedBinary checks that a named QEMU is used in place of the one in PATH, also through a
// symbolic link and by a relative path, and that a missing one is reported by its name.
func TestNamedBinary(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "qemu-of-test")
	script := "#!/bin/sh\necho QEMU emulator version 9.8.7\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	h := &statedir.Dir{Root: t.TempDir()}
	for _, name := range []string{program, filepath.Join(dir, "link"), "link"} {
		s, err := New(t.Context(), h, Options{Binary: name})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !strings.Contains(s.Version(), "9.8.7") || s.binary != program {
			t.Errorf("%s: %s, version %q", name, s.binary, s.Version())
		}
	}
	_, err := New(t.Context(), h, Options{Binary: filepath.Join(dir, "none")})
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), filepath.Join(dir, "none")) {
		t.Errorf("a missing program: %v", err)
	}
}
