package turns

import (
	"context"
	"errors"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/turnlog"
)

// TestDrain: no turn starts, the running one ends as it would, and who reads it reads the end.
func TestDrain(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	c := s.connect(t, s.client)
	if err := start(c, source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	<-x.first
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if err := s.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a turn runs: %v", err)
	}
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(t.Context()) }()
	late := s.ticket
	late.ID = "k_late5678"
	if err := s.Reserve(late); err != nil {
		t.Fatal(err)
	}
	if err := start(c, source, late.ID, nil); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a new turn: %v", err)
	}
	close(x.go2)
	r := turnlog.NewReader(s.doc, nil)
	if err := read(c, r, s.ticket.ID, whole); err != nil {
		t.Fatal(err)
	}
	if report, err, ok := r.Result(); !ok || err != nil || report == nil {
		t.Errorf("%+v %v %t", report, err, ok)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Errorf("nothing runs: %v", err)
	}
}
