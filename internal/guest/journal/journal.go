// Package journal keeps which commands of the wire an agent has answered.
package journal

import (
	"context"
	"reflect"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/wire"
)

const (
	// Size is the number of entries that are kept.
	Size          = 4096
	limitOfAnswer = 1000 // entries
)

// A Journal implements the domain Trace: it records the commands in the sandbox, in order. It keeps
// methods and their subjects, but no arguments, environment or content. It is safe for concurrent
// use.
type Journal struct {
	mu      sync.Mutex
	ring    []wire.TraceEntry // entry n is at (n-1)%Size
	last    int64             // sequence number of the newest; 0: none
	changed chan struct{}     // closed at the next entry, if there is a follower
	follows map[*wire.Conn]context.CancelFunc
}

// New returns an empty journal.
func New() *Journal { return &Journal{follows: make(map[*wire.Conn]context.CancelFunc)} }

// Observe records a completed command.
func (j *Journal) Observe(method string, params any, began time.Time, err error) {
	e := wire.TraceEntry{Method: method, Subject: brief.Clip(about(params), 300),
		Duration: int64(time.Since(began))}
	if err != nil {
		e.Error = brief.Clip(err.Error(), 300)
	}
	j.add(e)
}

func (j *Journal) add(e wire.TraceEntry) {
	e.Time = time.Now().Format(time.RFC3339Nano)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	e.Sequence = j.last
	if len(j.ring) < Size {
		j.ring = append(j.ring, e)
	} else {
		j.ring[(e.Sequence-1)%Size] = e
	}
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// from returns up to limit entries after a sequence number, and the number of the oldest kept
// entry. With wait, and without such entries, it also returns a channel that is closed at the next
// entry.
func (j *Journal) from(after int64, limit int,
	wait bool) (entries []wire.TraceEntry, first int64, next <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first = max(1, j.last-Size+1)
	entries = []wire.TraceEntry{}
	if after < 0 {
		after = 0
	}
	for n := max(after+1, first); n <= j.last && len(entries) < limit; n++ {
		entries = append(entries, j.ring[(n-1)%Size])
	}
	if len(entries) == 0 && wait {
		if j.changed == nil {
			j.changed = make(chan struct{})
		}
		next = j.changed
	}
	return entries, first, next
}

// GetEntries implements Trace.getEntries.
func (j *Journal) GetEntries(_ context.Context, _ *wire.Conn,
	p *wire.TraceGetEntriesParams) (*wire.TraceGetEntriesResult, error) {
	limit := limitOfAnswer
	if p.Limit > 0 {
		limit = int(min(p.Limit, limitOfAnswer))
	}
	entries, first, _ := j.from(p.After, limit, false)
	return &wire.TraceGetEntriesResult{Entries: entries, First: first}, nil
}

// Enable implements Trace.enable: a goroutine follows the journal for this connection, and blocks
// nobody. Entries that are dropped before a slow connection has received them appear as a gap in
// the sequence numbers.
func (j *Journal) Enable(ctx context.Context, c *wire.Conn) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.follows[c] != nil {
		return nil
	}
	follow, cancel := context.WithCancel(c.Context())
	ended := context.AfterFunc(c.Context(), func() { j.stop(c) })
	j.follows[c] = func() { ended(); cancel() }
	after := j.last
	wire.AfterReply(ctx, func() { c.Go(func() { j.follow(follow, c, after) }) })
	return nil
}

func (j *Journal) follow(ctx context.Context, c *wire.Conn, after int64) {
	for {
		entries, _, next := j.from(after, 64, true)
		for i := range entries {
			after = entries[i].Sequence
			if ctx.Err() != nil ||
				c.EmitTraceEntry(ctx, &wire.TraceEntryEvent{Entry: entries[i]}) != nil {
				return
			}
		}
		if next == nil {
			continue
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// Disable implements Trace.disable.
func (j *Journal) Disable(_ context.Context, c *wire.Conn) error {
	j.stop(c)
	return nil
}

func (j *Journal) stop(c *wire.Conn) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if cancel := j.follows[c]; cancel != nil {
		cancel()
		delete(j.follows, c)
	}
}

// about returns a command's subject: a process or a path, never a value.
func about(params any) string {
	v := reflect.Indirect(reflect.ValueOf(params))
	if v.Kind() != reflect.Struct {
		return ""
	}
	for _, name := range []string{"ProcessID", "Path", "From", "Dest"} {
		if f := v.FieldByName(name); f.IsValid() {
			return f.String()
		}
	}
	return ""
}
