package network

import (
	"slices"
	"sync"
	"time"
)

// maxWatched bounds the different refusals that a Watch holds.
const maxWatched = 256

// A Watch is an Observer that collects refusals until Take. It is safe for concurrent use, and
// bounded whatever a guest does.
type Watch struct {
	mu   sync.Mutex
	at   map[refusalKey]int // in all
	all  []Refused
	more int64
}

// A Refused is a Refusal that happened Count times since At.
type Refused struct {
	Refusal
	Count int64
	Last  time.Time
}

// refusalKey identifies equal refusals.
type refusalKey struct{ protocol, host, address, reason string }

// NewWatch returns an empty Watch.
func NewWatch() *Watch { return &Watch{at: map[refusalKey]int{}} }

// Refused implements Observer.
func (w *Watch) Refused(r Refusal) {
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
	w.all = append(w.all, Refused{Refusal: r, Count: 1, Last: r.At})
}

// Closed implements Observer. Stack.Totals counts the connections' bytes.
func (w *Watch) Closed(Connection) {}

// Take returns the refusals since the last call, by time, and the number of further refusals.
func (w *Watch) Take() (all []Refused, more int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all, more = w.all, w.more
	w.all, w.more = nil, 0
	clear(w.at)
	slices.SortStableFunc(all, func(a, b Refused) int { return a.At.Compare(b.At) })
	return all, more
}

// Facts are a network's events: the totals since its creation, and the refusals since the last
// call.
type Facts struct {
	Totals  Totals    `json:"totals"`
	Refused []Refused `json:"refused,omitempty"`
	More    int64     `json:"more,omitempty"` // refusals that are not in Refused
}

// Cut keeps at most n refusals, and counts the others.
func (f *Facts) Cut(n int) {
	for len(f.Refused) > n {
		last := len(f.Refused) - 1
		f.More += f.Refused[last].Count
		f.Refused = f.Refused[:last]
	}
}

// Totals are counters of a Stack since its creation. They only grow.
type Totals struct {
	Connections int64 // TCP connections and UDP flows that were allowed and opened
	Sent        int64 // bytes that the guest sent on them
	Received    int64 // bytes that the guest received on them
	Lookups     int64 // lookups of the host
	Refused     int64 // connections, lookups and packets that the policy or a limit ended
	Dropped     int64 // invalid frames of the guest, and frames for which the queue had no space
	Untold      int64 // refusals that the Observer did not receive: of limits, and beyond its rate
}
