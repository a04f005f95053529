package hosts

import (
	"fmt"
	"os"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/statedir"
)

func newShelf(t *testing.T, at string) shelf {
	t.Helper()
	a, err := remote.ParseAddress(at)
	if err != nil {
		t.Fatal(err)
	}
	return shelf{Store{Dir: &statedir.Dir{Root: t.TempDir()}}, a}
}

// TestShelf checks what is kept, for which server, and that files of others are not read.
func TestShelf(t *testing.T) {
	s := newShelf(t, "https://a.example")
	const id turnstone.SandboxID = "sb_000000000000000001"
	k := remote.KeptStatement{Envelope: []byte("{}"), Nonce: attest.Nonce{1}, Path: "/x"}
	if _, has := s.Statement(id); has {
		t.Error("an empty folder has a statement")
	}
	s.Keep(id, k)
	got, has := s.Statement(id)
	if !has || string(got.Envelope) != "{}" || got.Nonce != k.Nonce || got.Path != k.Path {
		t.Fatalf("%+v %v", got, has)
	}
	other := s
	other.address, _ = remote.ParseAddress("https://b.example")
	if _, has := other.Statement(id); has {
		t.Error("another server has the statement")
	}
	path, _ := s.path(id)
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", i.Mode(), err)
	}
	if err := os.Chmod(path, 0o622); err != nil {
		t.Fatal(err)
	}
	if _, has := s.Statement(id); has {
		t.Error("a file that others can write is read")
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, has := s.Statement(id); has {
		t.Error("a damaged file has a statement")
	}
	s.Keep(id, k)
	s.Drop(id)
	if _, has := s.Statement(id); has {
		t.Error("a statement that was dropped is kept")
	}
	for _, bad := range []turnstone.SandboxID{"", "../key", "sb_", id + "/x", "."} {
		s.Keep(bad, k)
		if _, has := s.Statement(bad); has {
			t.Errorf("%q has a file", bad)
		}
	}
	if all, err := os.ReadDir(s.folder()); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
}

// TestShelfIsBounded: old files and the oldest of too many are removed.
func TestShelfIsBounded(t *testing.T) {
	s := newShelf(t, "https://a.example")
	id := func(n int) turnstone.SandboxID {
		return turnstone.SandboxID(fmt.Sprintf("sb_%018d", n))
	}
	now := time.Now()
	for n := range maxStatements + 5 {
		s.Keep(id(n), remote.KeptStatement{})
		path, _ := s.path(id(n))
		at := now.Add(time.Duration(n-1000) * time.Second)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	s.Keep(id(9999), remote.KeptStatement{})
	all, err := os.ReadDir(s.folder())
	if err != nil || len(all) != maxStatements {
		t.Fatalf("%d files: %v", len(all), err)
	}
	if _, has := s.Statement(id(5)); has {
		t.Error("the oldest statement stays")
	}
	if _, has := s.Statement(id(9999)); !has {
		t.Error("the newest statement is gone")
	}
	s.prune(now.Add(attest.MaxValidity + time.Minute))
	if all, _ = os.ReadDir(s.folder()); len(all) != 0 {
		t.Errorf("%d expired files stay", len(all))
	}
}
