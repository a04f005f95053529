package sandboxes_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// TestManyClients: the last client within the limit works, the next client gets an error, and a
// client that does not read blocks no other client.
func TestManyClients(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	for range 60 {
		c, err := s.Dial(t.Context(), i.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	conn, err := s.Dial(t.Context(), i.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = wire.NewFrames(conn, false).Next(nil)
	var closed *wire.ClosedError
	if !errors.As(err, &closed) || closed.Code != 1013 ||
		!strings.Contains(closed.Reason, "limit of connections") {
		t.Errorf("%v", err)
	}
	_ = conn.Close()
}

func TestClientThatDoesNotRead(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	conn, err := s.Dial(t.Context(), i.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	garbage := []byte(`{"id":1,"method":"No.such"}`)
	go func() { // sends without reading the answers
		f := wire.NewFrames(conn, false)
		for f.WriteText(garbage) == nil {
		}
	}()
	time.Sleep(200 * time.Millisecond) //wait: any moment is right
	use(t, s, i.ID, strings.Repeat("x", 3<<20))
}

// TestLongPath: a socket's path is limited to 107 bytes.
func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	s := sandboxes.NewStore(dir)
	s.Holder = sandboxes.Holder{Path: "/proc/self/exe", Args: []string{holderName}}
	i := create(t, s, spec("fine"))
	use(t, s, i.ID, strings.Repeat("hello", 1<<20))
	if err := s.Remove(t.Context(), i.ID); err != nil {
		t.Error(err)
	}
}

// TestSweep: the next creation removes the remains of killed creations.
func TestSweep(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{".new-sb_000000000000000000", ".new-sb_000000000000000001",
		".gone-sb_000000000000000002"} {
		dir := filepath.Join(s.Dir(), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if name != ".new-sb_000000000000000001" { // that creation is just beginning
			old := time.Now().Add(-time.Hour)
			if err := os.Chtimes(dir, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	i := create(t, s, spec("fine"))
	entries, err := os.ReadDir(s.Dir())
	if err != nil || len(entries) != 2 || entries[0].Name() != ".new-sb_000000000000000001" ||
		entries[1].Name() != string(i.ID) {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestPrivate: other users can neither read nor connect.
func TestPrivate(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	for name, want := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "state.json": 0o600,
		"lock": 0o600, "log": 0o600, "wire.sock": 0o600 | os.ModeSocket} {
		st, err := os.Stat(filepath.Join(s.Dir(), string(i.ID), name))
		if err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
}
