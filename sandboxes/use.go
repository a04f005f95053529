package sandboxes

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"turnstone.dev/turnstone/wire"
)

// A use detects that a process or step runs in a machine. It uses the agent's journal instead of
// the relayed bytes, which may be encrypted one day.
type use struct {
	seen chan struct{} // closed after the first use
	once sync.Once
}

func newUse() *use { return &use{seen: make(chan struct{})} }

// watchTime bounds the time in which a newly configured agent answers.
const watchTime = time.Minute

// watch continues after a machine's connections have ended, unless a use has been seen already.
func (u *use) watch(ctx context.Context, m Machine, log *slog.Logger) {
	select {
	case <-u.seen:
		return
	default:
	}
	if err := u.watchOnce(ctx, m); err != nil {
		log.Warn("the first use of the sandbox will not be noticed", "err", err)
	}
}

// watchOnce watches until a process or step runs, or the connection ends.
func (u *use) watchOnce(ctx context.Context, m Machine) error {
	s, err := m.Connect()
	if err != nil {
		return err
	}
	c := wire.NewConn(s, wire.Options{OnEvent: func(e wire.Event) {
		if e.Method != wire.EventTraceEntry {
			return
		}
		v, err := wire.DecodeEvent(e)
		if entry, ok := v.(*wire.TraceEntryEvent); err == nil && ok && entry.Entry.Error == "" {
			switch entry.Entry.Method {
			case wire.MethodProcessStart, wire.MethodShellExecute:
				u.once.Do(func() { close(u.seen) })
			}
		}
	}})
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	if err := c.TraceEnable(ctx); err != nil {
		_ = c.Close()
		return err
	}
	go func() { // a single look is enough
		select {
		case <-u.seen:
		case <-c.Done():
		case <-m.Done():
		}
		_ = c.Close()
	}()
	return nil
}
