package sandboxes

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// dead makes the folder of a sandbox whose holder has died.
func dead(s *Store) (turnstone.SandboxID, error) {
	id := turnstone.NewSandboxID()
	dir := s.path(id)
	return id, cmp.Or(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, lockFile), nil, 0o600),
		writeInfo(dir, Info{ID: id, State: StateReady, Image: "x"}))
}

// comeAndGo makes sandboxes and removes them.
func comeAndGo(s *Store) error {
	for range 300 {
		id, err := dead(s)
		if err != nil {
			return err
		}
		lock, err := statedir.Acquire(context.Background(), filepath.Join(s.path(id), lockFile), nil)
		if err == nil {
			err = s.discard(id)
		}
		lock.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// TestRemovedMeanwhile removes sandboxes beside a reader, which has them, or has none, and no error.
func TestRemovedMeanwhile(t *testing.T) {
	s := NewStore(t.TempDir())
	done := make(chan error)
	go func() { done <- comeAndGo(s) }()
	for over := false; !over; {
		select {
		case err := <-done:
			if over = true; err != nil {
				t.Error(err)
			}
		default:
		}
		all, err := s.List(t.Context())
		if err != nil {
			t.Error(err)
		}
		for _, i := range all {
			if i.Image == "" {
				t.Errorf("while it is removed, a sandbox is %+v", i)
			}
		}
	}
}

// TestSlowReader: who finds a dead holder's lock with another reader waits until that has noted the death.
func TestSlowReader(t *testing.T) {
	s := NewStore(t.TempDir())
	id, err := dead(s)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := statedir.TryAcquire(filepath.Join(s.path(id), lockFile))
	if lock == nil || err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, lock.Release) //wait: a busy disk; the reader looks 1000 times
	if i, err := s.Get(id); err != nil || i.State != StateFailed {
		t.Errorf("%+v, %v", i, err)
	}
}
