package provision

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/wire"
)

// silent is a machine whose guest answers nothing.
type silent struct {
	guest net.Conn
	once  sync.Once
	done  chan struct{}
}

func (m *silent) ID() turnstone.SandboxID { return "sb_silent" }
func (m *silent) Done() <-chan struct{}   { return m.done }
func (m *silent) Err() error              { return nil }
func (m *silent) Close() error {
	m.once.Do(func() { close(m.done) })
	return m.guest.Close()
}

// TestRehearsalHangs: a sandbox whose guest hangs does not keep those that are made after it.
func TestRehearsalHangs(t *testing.T) {
	for name, f := range map[string]func(context.Context, *sandbox.Sandbox) error{
		"a shell":  func(ctx context.Context, s *sandbox.Sandbox) error { return rehearse(ctx, s, "") },
		"a fork":   func(ctx context.Context, s *sandbox.Sandbox) error { return fork(ctx, s, "") },
		"a parked": func(ctx context.Context, s *sandbox.Sandbox) error { park(ctx, s, ""); return io.EOF },
	} {
		synctest.Test(t, func(t *testing.T) {
			host, guest := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, guest) }()
			m := &silent{guest: guest, done: make(chan struct{})}
			l := &sandbox.Launcher{KillGrace: time.Second}
			s := l.Attach(nil, "", m, sandbox.About{}, wire.NewClient(host))
			began := time.Now()
			if err := f(t.Context(), s); err == nil || time.Since(began) > time.Minute {
				t.Error(name, err, time.Since(began))
			}
			_ = s.Close()
		})
	}
}
