package main

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/statedir"
)

// Two keys of roots.
const (
	oldRoot = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	newRoot = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
)

// TestHosts: a list of a mounted secret is taken once, again when its text changes, and not when it is
// damaged. What the operator has seen of roots stays.
func TestHosts(t *testing.T) {
	from, home := t.TempDir(), filepath.Join(t.TempDir(), "home")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(from, hosts.File), []byte(text), 0o440); err != nil {
			t.Fatal(err)
		}
	}
	l := &hostList{from: from, home: home}
	take := func(want, fails bool) {
		t.Helper()
		if took, err := l.take(t.Context()); took != want || (err != nil) != fails {
			t.Errorf("taken: %v, %v", took, err)
		}
	}
	take(false, true)
	write("[hosts.cluster]\nurl = \"https://turn.example.org\"\n[hosts.cluster.nodes]\nn1 = [\"" + oldRoot + "\"]\n")
	take(true, false)
	take(false, false)
	dir, err := statedir.Open(home)
	if err != nil {
		t.Fatal(err)
	}
	store := hosts.Store{Dir: dir}
	load := func() *hosts.List {
		t.Helper()
		list, err := store.Load()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if h := load().Hosts["cluster"]; h == nil || len(h.Nodes["n1"]) != 1 {
		t.Errorf("%+v", h)
	}
	write("[hosts.cluster")
	take(false, true)
	rooted := "[hosts.cluster]\nurl = \"https://turn.example.org\"\n[hosts.cluster.root]\nkey = \"" + oldRoot + "\"\nepoch = 1\n"
	write(rooted)
	take(true, false)
	if h := load().Hosts["cluster"]; len(h.Nodes) != 0 || h.Root.Key != oldRoot || h.Root.Epoch != 1 {
		t.Errorf("%+v", h)
	}
	if err := store.Change(t.Context(), func(l *hosts.List) error { // as when a node shows a succession
		l.Hosts["cluster"].Root = &hosts.Root{Key: newRoot, Epoch: 7, Former: []string{oldRoot}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	write(rooted + "# another secret\n")
	l = &hostList{from: from, home: home} // an operator that starts anew
	take(true, false)
	if r := load().Hosts["cluster"].Root; r.Key != newRoot || r.Epoch != 7 || len(r.Former) != 1 {
		t.Errorf("what was seen of the root is forgotten: %+v", r)
	}
}
