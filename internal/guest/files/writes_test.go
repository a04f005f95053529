package files

import (
	"context"
	"io"
	"testing"
	"time"
)

func TestWrites(t *testing.T) {
	w := new(Writes)
	mustDo(t, w.enter(t.Context()))
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if err := w.Stop(soon); err == nil {
		t.Error("stopped while one runs")
	}
	w.Resume()
	// A command that waits for its client blocks nobody, and continues afterwards.
	r, feed := io.Pipe()
	read := make(chan struct{})
	go func() {
		_, _ = w.from(r).Read(make([]byte, 1))
		close(read)
		w.leave()
	}()
	mustDo(t, w.Stop(t.Context()))
	_, _ = feed.Write([]byte("x"))
	select {
	case <-read:
		t.Error("it goes on while the disk is frozen")
	case <-time.After(30 * time.Millisecond): //wait: longer only makes the check stricter
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.enter(ended); err == nil {
		t.Error("another begins")
	}
	w.Resume()
	<-read
	mustDo(t, w.enter(t.Context()))
	w.leave()
	mustDo(t, w.Stop(t.Context()))
	w.Resume()
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
