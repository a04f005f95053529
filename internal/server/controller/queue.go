package controller

import (
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/usage"
)

// A queue has the latest report of each object.
type queue struct {
	wake chan struct{} // has one element when there is something

	mu    sync.Mutex
	all   map[usage.Ref]message.Report
	order []usage.Ref
}

// add adds a report. The error is of kind Exhausted if there are too many.
func (q *queue) add(r message.Report) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all == nil {
		q.all = map[usage.Ref]message.Report{}
	}
	id := usage.RefOf(r.Object)
	if _, ok := q.all[id]; !ok {
		if len(q.order) >= maxReports {
			return turnstone.Errorf("node.follow", turnstone.KindExhausted, "the node",
				"reports faster than its reports can be recorded")
		}
		q.order = append(q.order, id)
	}
	q.all[id] = r
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return nil
}

// take removes and returns all reports in the order of their arrival.
func (q *queue) take() (all []message.Report) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range q.order {
		all = append(all, q.all[id])
	}
	q.all, q.order = nil, nil
	return all
}
