package turns

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/turnlog"
)

// has reports whether a file below dir contains text.
func has(t *testing.T, dir, text string) (found bool) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var b []byte
			b, err = os.ReadFile(path)
			found = found || strings.Contains(string(b), text)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestPrivate: what a turn of a sealed session prints is in the folder in memory alone, is there for a
// client that comes back, and when it is gone, the client is told.
func TestPrivate(t *testing.T) {
	x, memory := newPlayer(), t.TempDir()
	s := newScene(t, t.TempDir(), x)
	s.Private(func(_ context.Context, ticket Ticket) (string, error) {
		dir := filepath.Join(memory, ticket.ID)
		return dir, os.MkdirAll(dir, 0o700)
	})
	c := s.connect(t, s.client)
	if err := start(c, source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	<-x.first
	close(x.go2)
	if filepath.Dir(filepath.Dir(x.req.Dir)) != memory {
		t.Errorf("the files of the turn are in %s", x.req.Dir)
	}
	waitIdle(s.Service)
	if has(t, s.dir, `"output"`) || !has(t, memory, `"output"`) {
		t.Error("the journal is not in memory alone")
	}
	again := s.restart(t, x)
	c2 := again.connect(t, s.client)
	j := turnlog.NewReader(s.doc, nil)
	if err := read(c2, j, s.ticket.ID, whole); err != nil {
		t.Fatal(err)
	}
	if report, err, ok := j.Result(); !ok || err != nil || report.Result != turnstone.ResultPassed {
		t.Errorf("after a restart: %+v %v %v", report, err, ok)
	}
	if err := os.RemoveAll(filepath.Join(memory, s.ticket.ID)); err != nil {
		t.Fatal(err)
	}
	err := read(c2, turnlog.NewReader(s.doc, nil), s.ticket.ID, whole)
	if turnstone.KindOf(err) != turnstone.KindNotFound || turnstone.HintOf(err) == "" ||
		!strings.Contains(err.Error(), "no longer in memory") {
		t.Errorf("a forgotten journal: %v", err)
	}
}

// TestPrivateRemoved: the folder in memory goes with its ticket.
func TestPrivateRemoved(t *testing.T) {
	dir, memory := t.TempDir(), filepath.Join(t.TempDir(), "k")
	if err := os.Mkdir(memory, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(memory, filepath.Join(dir, privateLink)); err != nil {
		t.Fatal(err)
	}
	if err := remove(dir); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, memory} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is there", path)
		}
	}
}
