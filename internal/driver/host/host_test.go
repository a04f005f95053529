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

// What is known of a program holds until the program, or its path, is another.
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
	if _, ok := Known(h, name, path); ok {
		t.Error("something is known before anybody has asked")
	}
	p, err := Ask(t.Context(), path, func(context.Context) (string, error) { return "version 1", nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Remember(h, name); err != nil {
		t.Fatal(err)
	}
	if got, ok := Known(h, name, path); !ok || got != p {
		t.Errorf("known is %+v (%t), want %+v", got, ok, p)
	}
	if _, ok := Known(h, name, path+"2"); ok {
		t.Error("it is known of another path")
	}
	write("two")
	if _, ok := Known(h, name, path); ok {
		t.Error("it is known of a program that was replaced")
	}
}

func TestAskFails(t *testing.T) {
	path, refused := filepath.Join(t.TempDir(), "program"), errors.New("refused")
	version := func(context.Context) (string, error) { return "", refused }
	if _, err := Ask(t.Context(), path, version); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(t.Context(), path, version); !errors.Is(err, refused) {
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
