package usage

import (
	"sync"
	"sync/atomic"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/controller/message"
)

// A Queue has the latest report of each object. Its methods are safe for concurrent use.
type Queue struct {
	Wake chan struct{} // has one element when there is something
	Max  int           // objects
	// Waiting counts the reports of all queues; nil: nobody counts.
	Waiting *atomic.Int64

	mu    sync.Mutex
	all   map[Ref]message.Report
	order []Ref
}

// Add adds a report. The error is of kind Exhausted if there are too many.
func (q *Queue) Add(r message.Report) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all == nil {
		q.all = map[Ref]message.Report{}
	}
	id := RefOf(r.Object)
	if _, ok := q.all[id]; !ok {
		if len(q.order) >= q.Max {
			return turnstone.Errorf("node.follow", turnstone.KindExhausted, "the node",
				"reports faster than its reports can be recorded")
		}
		q.order = append(q.order, id)
		q.count(1)
	}
	q.all[id] = r
	select {
	case q.Wake <- struct{}{}:
	default:
	}
	return nil
}

// Take removes and returns all reports in the order of their arrival.
func (q *Queue) Take() (all []message.Report) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range q.order {
		all = append(all, q.all[id])
	}
	q.count(-len(q.order))
	q.all, q.order = nil, nil
	return all
}

func (q *Queue) count(n int) {
	if q.Waiting != nil {
		q.Waiting.Add(int64(n))
	}
}
