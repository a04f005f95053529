package service

import (
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// manager is a systemd that collects what it is told.
func manager(t *testing.T) (next func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		b := make([]byte, 4096)
		if err := c.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

func TestNotify(t *testing.T) {
	next := manager(t)
	m := New(slog.New(slog.DiscardHandler))
	m.Ready("127.0.0.1:7420 unix:/s")
	if got := next(); got != "READY=1\nSTATUS=Listening at 127.0.0.1:7420 unix:/s" {
		t.Errorf("%q", got)
	}
	m.Reloading()
	if got := next(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") ||
		strings.HasSuffix(got, "=0") {
		t.Errorf("%q", got)
	}
	m.Stopping(time.Minute)
	if got := next(); !strings.HasPrefix(got, "STOPPING=1\n") ||
		!strings.Contains(got, "EXTEND_TIMEOUT_USEC=90000000") {
		t.Errorf("%q", got)
	}
}

// TestWatchdog: systemd hears from the process more often than it must.
func TestWatchdog(t *testing.T) {
	next := manager(t)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(3000))
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		New(slog.New(slog.DiscardHandler)).Watch(ended)
	}()
	for range 3 {
		if got := next(); got != "WATCHDOG=1" {
			t.Errorf("%q", got)
		}
	}
	close(ended)
	<-done
	t.Setenv("WATCHDOG_USEC", "")
	New(slog.New(slog.DiscardHandler)).Watch(nil) // returns: there is no watchdog
}

// TestWithout: without a service manager nothing happens.
func TestWithout(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	m := New(slog.New(slog.DiscardHandler))
	m.Ready("")
	m.Reloading()
	m.Stopping(0)
}
