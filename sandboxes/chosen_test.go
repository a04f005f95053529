package sandboxes_test

import (
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
)

// TestChosenID: of several creations with one ID only one succeeds, and the others do not harm it.
func TestChosenID(t *testing.T) {
	s := newStore(t)
	sp := spec("fine")
	sp.ID = turnstone.NewSandboxID()
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for n := range errs {
		wg.Go(func() { _, errs[n] = s.Create(t.Context(), sp, nil) })
	}
	wg.Wait()
	made := 0
	for _, err := range append(errs, func() error {
		_, err := s.Create(t.Context(), sp, nil)
		return err
	}()) {
		if err == nil {
			made++
		} else if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Error(err)
		}
	}
	if i, err := s.Get(sp.ID); made != 1 || err != nil || i.State != sandboxes.StateReady {
		t.Fatalf("%d were created; %+v, %v", made, i, err)
	}
	sp.ID = "../../escape"
	if _, err := s.Create(t.Context(), sp, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}

// TestChosenForks: the clones have the IDs that were chosen.
func TestChosenForks(t *testing.T) {
	s := newStore(t)
	parent := create(t, s, spec("live"))
	ids := []turnstone.SandboxID{turnstone.NewSandboxID(), turnstone.NewSandboxID()}
	f := sandboxes.Fork{Count: 2, IDs: ids, TTL: time.Hour}
	if _, err := s.Fork(t.Context(), parent.ID, f, nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if i, err := s.Get(id); err != nil || i.Parent != parent.ID {
			t.Errorf("%+v, %v", i, err)
		}
	}
	f.IDs = ids[:1]
	if _, err := s.Fork(t.Context(), parent.ID, f, nil); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Error(err)
	}
}

// TestSetTTL sets, shortens and removes the time to a sandbox's stop.
func TestSetTTL(t *testing.T) {
	s := newStore(t)
	sp := spec("fine")
	sp.TTL = time.Hour
	i := create(t, s, sp)
	c := control(t, s, i.ID)
	if err := c.SetTTL(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if now, err := s.Get(i.ID); err != nil || now.Expires != nil {
		t.Fatalf("%+v, %v", now, err)
	}
	if err := c.SetTTL(t.Context(), -1); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatal(err)
	}
	if err := c.SetTTL(t.Context(), 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if now, err := s.Get(i.ID); err != nil || now.Expires == nil ||
		time.Until(*now.Expires) < 2*time.Hour {
		t.Fatalf("%+v, %v", now, err)
	}
	if err := c.SetTTL(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	end := await(t, s, i.ID, sandboxes.StateStopped)
	if end.End != sandboxes.EndTimeUp {
		t.Errorf("%+v", end)
	}
}
