package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone/internal/statedir"
)

// TestKnown checks that the facts on a program are valid until the program, or its path, changes.
func TestKnown(t *testing.T) {
	h, path := &statedir.Dir{Root: t.TempDir()}, filepath.Join(t.TempDir(), "program")
	const name = "program-version.json"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	if _, ok := recall(h, name, path); ok {
		t.Error("a value is known before the first request")
	}
	p, err := ask(t.Context(), path, func(context.Context) (string,
		error) {
		return "version 1", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.remember(h, name); err != nil {
		t.Fatal(err)
	}
	if got, ok := recall(h, name, path); !ok || got != p {
		t.Errorf("known is %+v (%t), want %+v", got, ok, p)
	}
	if _, ok := recall(h, name, path+"2"); ok {
		t.Error("it is known of another path")
	}
	write("two")
	if _, ok := recall(h, name, path); ok {
		t.Error("it is known of a program that was replaced")
	}
}

func TestAskFails(t *testing.T) {
	path, refused := filepath.Join(t.TempDir(), "program"), errors.New("refused")
	version := func(context.Context) (string, error) { return "", refused }
	if _, err := ask(t.Context(), path, version); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t.Context(), path, version); !errors.Is(err, refused) {
		t.Errorf("a program that does not say its version: %v", err)
	}
}

func TestCPU(t *testing.T) {
	one, err := CPU()
	two, again := CPU()
	if err != nil || again != nil || one != two || one == "" {
		t.Errorf("%q (%v), then %q (%v)", one, err, two, again)
	}
}

// TestVersioned checks that the first line of a program's output is its version, as printable text,
// that the program is asked once, and that failures are not remembered.
func TestVersioned(t *testing.T) {
	dir := t.TempDir()
	h := &statedir.Dir{Root: filepath.Join(dir, "home")}
	path, asked := filepath.Join(dir, "program"), filepath.Join(dir, "asked")
	write := func(text string) {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("echo x >>" + asked + "; printf '\\033[2J program 1.2 \\nmore\\n'\n")
	for range 2 {
		p, err := Versioned(t.Context(), h, "program.json", path)
		if err != nil || p.Version != "?[2J program 1.2" || p.Path != path {
			t.Errorf("%+v, %v", p, err)
		}
	}
	if b, err := os.ReadFile(asked); err != nil || string(b) != "x\n" {
		t.Errorf("it was asked %q, %v", b, err)
	}
	write("exit 3\n")
	for range 2 {
		if _, err := Versioned(t.Context(), h, "program.json", path); err == nil {
			t.Error("a program that fails has a version")
		}
	}
}
