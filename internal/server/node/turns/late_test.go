package turns

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
)

// TestLateEnd: the disk takes nothing more while a turn runs. Its client reads the end anyway, also with
// another connection and later; the turn's state says it, and both are stored when the disk has room.
func TestLateEnd(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	if err := start(s.connect(t, s.client), source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	<-x.first
	s.mu.Lock()
	r := s.running[s.ticket.ID]
	s.mu.Unlock()
	if err := r.journal.f.Close(); err != nil { // a file that takes nothing, and that nobody can read
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, s.ticket.ID, journalFile)
	full, err := os.Open(path) // one that can be read
	if err != nil {
		t.Fatal(err)
	}
	r.journal.f = full
	close(x.go2)
	waitIdle(s.Service)
	for range 2 {
		report, err := s.end(t)
		if report == nil || report.Result != turnstone.ResultPassed {
			t.Errorf("%+v, %v", report, err)
		}
		i, err := s.Get(s.ticket.ID)
		if err != nil || i.State != Done || i.Result != turnstone.ResultPassed || i.Ended.IsZero() {
			t.Errorf("%+v, %v", i, err)
		}
	}
	outcome := filepath.Join(s.dir, s.ticket.ID, outcomeFile)
	if _, err := os.Stat(outcome); err == nil {
		t.Error("the outcome is stored, and the journal is not")
	}
	_ = full.Close()
	if r.journal.f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	if i, err := s.Get(s.ticket.ID); err != nil || i.Result != turnstone.ResultPassed {
		t.Errorf("%+v, %v", i, err)
	}
	if _, err := os.Stat(outcome); err != nil || len(s.late) != 0 {
		t.Errorf("%v, %d late", err, len(s.late))
	}
	if report, err := s.restart(t, x).end(t); report == nil || report.Result != turnstone.ResultPassed {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestWholeOrNot: a file that cannot be written is not there, and no other process sees a part of it.
func TestWholeOrNot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := writeSynced(path, []byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(path, []byte("another")); !os.IsExist(err) {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "text" {
		t.Errorf("%q %v", b, err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v %v", all, err)
	}
}
