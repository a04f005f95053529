package filestamp

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestStamp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	write("hello")
	s, err := Of(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if want := turnstone.DigestBytes([]byte("hello")); s.Digest != want {
		t.Fatalf("digest %s, want %s", s.Digest, want)
	}
	if !s.Fresh(path) {
		t.Fatal("not fresh right after it was taken")
	}

	// Touched but unchanged: Check verifies the content and returns a new stamp.
	old := time.Unix(1, 0)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if s.Fresh(path) {
		t.Fatal("fresh after a touch")
	}
	touched, err := s.Check(ctx, path)
	if err != nil || !touched.Fresh(path) || touched.Digest != s.Digest {
		t.Fatalf("Check after a touch: %+v, %v", touched, err)
	}

	// Same size and restored times: only the change time differs.
	write("jello")
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if touched.Fresh(path) {
		t.Fatal("an edited file with its old times passes as fresh")
	}
	if _, err := touched.Check(ctx, path); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Fatalf("Check of an edited file: %v", err)
	}
	for _, breakIt := range []func(){
		func() { write("longer than before") },
		func() { _ = os.Remove(path) },
		func() { _ = os.Symlink("/etc/passwd", path) },
	} {
		breakIt()
		if _, err := s.Check(ctx, path); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Fatalf("Check of a broken file: %v", err)
		}
	}
}

func TestCheckStopsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Of(ctx, path); err == nil {
		t.Fatal("a cancelled read succeeds")
	}
}

func TestWriteFileReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for content, write := range map[string]func(string, []byte, os.FileMode) error{"one": WriteFile,
		"two": Replace, "three": WriteFile} {
		if err := write(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := Sync(path); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != content {
			t.Fatalf("%q, %v", b, err)
		}
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 {
		t.Fatalf("left behind: %v", entries)
	}
	if err := Sync(filepath.Join(dir, "other")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
