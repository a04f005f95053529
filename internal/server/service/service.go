// Package service tells systemd about a service's state (sd_notify(3)). Without systemd it does
// nothing.
package service

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// A Manager is the service manager that started this process. It is safe for concurrent use.
type Manager struct{ log *slog.Logger }

// New returns the manager. log gets what could not be said to it.
func New(log *slog.Logger) *Manager { return &Manager{log} }

func (m *Manager) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		m.log.Warn("the service manager cannot be notified", "error", err)
	}
}

// Ready says that the service answers, and where.
func (m *Manager) Ready(where string) {
	m.notify(daemon.SdNotifyReady + "\nSTATUS=Listening at " + where)
}

// Reloading says that the service reads its files again; Ready ends it.
func (m *Manager) Reloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	m.notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}

// slack is what the manager waits beyond the time for running turns.
const slack = 30 * time.Second

// Stopping says that the service ends, within a time.
func (m *Manager) Stopping(within time.Duration) {
	m.notify(fmt.Sprintf("%s\nSTATUS=Running turns may finish within %s\nEXTEND_TIMEOUT_USEC=%d",
		daemon.SdNotifyStopping, within, (within + slack).Microseconds()))
}

// Watch tells the manager's watchdog that the process lives, until ended is closed.
func (m *Manager) Watch(ended <-chan struct{}) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return
	}
	t := time.NewTicker(every / 3)
	defer t.Stop()
	for {
		select {
		case <-ended:
			return
		case <-t.C:
			m.notify(daemon.SdNotifyWatchdog)
		}
	}
}
