package network

import (
	"slices"
	"sync"
	"turnstone.dev/turnstone"
)

// maxWatched bounds the different refusals that a Watch holds, and its connections.
const maxWatched = 256

// A Watch is an Observer that collects refusals and ended connections until they are taken. It is
// safe for concurrent use, and bounded whatever a guest does.
type Watch struct {
	mu   sync.Mutex
	at   map[refusalKey]int // in all
	all  []turnstone.Refused
	more int64

	ended []turnstone.ConnectionReport
}

// refusalKey identifies equal refusals.
type refusalKey struct{ protocol, host, address, reason string }

// NewWatch returns an empty Watch.
func NewWatch() *Watch { return &Watch{at: map[refusalKey]int{}} }

// Refused implements Observer.
func (w *Watch) Refused(r turnstone.Refusal) {
	k := refusalKey{r.Protocol, r.Host, "", r.Reason}
	if r.Address.IsValid() {
		k.address = r.Address.String()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i, ok := w.at[k]; ok {
		w.all[i].Count++
		w.all[i].Last = r.At
		return
	}
	if len(w.all) == maxWatched {
		w.more++
		return
	}
	w.at[k] = len(w.all)
	w.all = append(w.all, turnstone.Refused{Refusal: r, Count: 1, Last: r.At})
}

// Closed implements Observer. Stack.Totals counts the bytes of all connections, also of those that
// are too many to hold.
func (w *Watch) Closed(c Connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ended) == maxWatched {
		return
	}
	r := turnstone.ConnectionReport{Protocol: c.Protocol, Host: c.Host, Start: c.Start.UTC(),
		End: c.End.UTC(), Sent: c.Sent, Received: c.Received}
	if c.Address.IsValid() {
		r.Address = c.Address.String()
	}
	w.ended = append(w.ended, r)
}

// TakeEnded returns the connections that ended since the last call, by their start.
func (w *Watch) TakeEnded() []turnstone.ConnectionReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended := w.ended
	w.ended = nil
	slices.SortStableFunc(ended, func(a, b turnstone.ConnectionReport) int {
		return a.Start.Compare(b.Start)
	})
	return ended
}

// Take returns the refusals since the last call, by time, and the number of further refusals.
func (w *Watch) Take() (all []turnstone.Refused, more int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all, more = w.all, w.more
	w.all, w.more = nil, 0
	clear(w.at)
	slices.SortStableFunc(all, func(a, b turnstone.Refused) int { return a.At.Compare(b.At) })
	return all, more
}
