package sandboxes

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"turnstone.dev/turnstone/wire"
)

// A use finds out that something is run in a machine: from the agent's journal, not
// from the bytes that are relayed, which may be encrypted one day.
type use struct {
	seen chan struct{} // closed when something was run
	once sync.Once
}

func newUse() *use { return &use{seen: make(chan struct{})} }

// watchTime bounds how long an agent that has just been configured takes to answer.
const watchTime = time.Minute

// watch goes on watching a machine whose connections have ended, unless something
// has been seen already.
func (u *use) watch(ctx context.Context, m Machine, log *slog.Logger) {
	select {
	case <-u.seen:
		return
	default:
	}
	if err := u.watchOnce(ctx, m); err != nil {
		log.Warn("that something is run will not be noticed", "err", err)
	}
}

// watchOnce watches until something is run, or the connection ends.
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
	go func() { // one look is enough
		select {
		case <-u.seen:
		case <-c.Done():
		case <-m.Done():
		}
		_ = c.Close()
	}()
	return nil
}
