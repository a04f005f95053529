package diskspace

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
)

func floor(t *testing.T, text string) (s config.Space) {
	t.Helper()
	if err := s.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCheck(t *testing.T) {
	d := New(t.TempDir())
	d.Statfs = func(string) (uint64, uint64, error) { return 100 << 30, 30 << 30, nil }
	err := d.Check(floor(t, "50%"), 1)
	if !errors.Is(err, errLow) || turnstone.KindOf(err) != turnstone.KindExhausted ||
		turnstone.HintOf(err) == "" {
		t.Errorf("30 of 100 GiB are free: %v", err)
	}
	if err := d.Check(floor(t, "50%"), 2); err != nil {
		t.Errorf("half of the floor: %v", err)
	}
	broken := errors.New("broken")
	d.Statfs = func(string) (uint64, uint64, error) { return 0, 0, broken }
	if err := d.Check(floor(t, "50%"), 1); !errors.Is(err, broken) || errors.Is(err, errLow) {
		t.Errorf("a disk that cannot be read: %v", err)
	}
}

// TestWatch checks that Watch ends its context when the disk is full, and that Low distinguishes
// this end from others.
func TestWatch(t *testing.T) {
	d := New(t.TempDir())
	d.Every = time.Millisecond
	var full atomic.Bool
	d.Statfs = func(string) (uint64, uint64, error) {
		if full.Load() {
			return 100, 1, nil
		}
		return 100, 99, nil
	}
	ctx, stop := d.Watch(t.Context(), floor(t, "50%"))
	defer stop()
	if err := Low(ctx); err != nil {
		t.Errorf("before: %v", err)
	}
	full.Store(true)
	<-ctx.Done()
	if err := Low(ctx); !errors.Is(err, errLow) {
		t.Errorf("after: %v", err)
	}

	full.Store(false)
	parent, cancel := context.WithCancel(t.Context())
	other, stopOther := d.Watch(parent, floor(t, "50%"))
	defer stopOther()
	cancel()
	<-other.Done()
	if err := Low(other); err != nil {
		t.Errorf("canceled by the caller: %v", err)
	}
}

func TestRoom(t *testing.T) {
	if err := Room(t.TempDir(), floor(t, "1000000GiB")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a floor above the size of the disk: %v", err)
	}
	if err := Room(t.TempDir(), floor(t, "1KiB")); err != nil {
		t.Errorf("a floor of 1 KiB: %v", err)
	}
}
