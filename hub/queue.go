package hub

import "sync"

// maxQueue bounds what waits for one session's agent, in bytes, beside the one
// message that went over it.
const maxQueue = 4 << 20

// An item is a message on its way to an agent.
type item struct {
	text bool
	data []byte
}

// A queue holds what an agent has not taken yet. Whoever adds to a full one waits.
type queue struct {
	mu     sync.Mutex
	change sync.Cond
	items  []item
	bytes  int
	closed bool
}

func newQueue() *queue {
	q := &queue{}
	q.change.L = &q.mu
	return q
}

// push reports whether the queue is still open.
func (q *queue) push(i item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= maxQueue && !q.closed {
		q.change.Wait()
	}
	if q.closed {
		return false
	}
	q.items = append(q.items, i)
	q.bytes += len(i.data) + 64 // what an item costs beside its data
	q.change.Broadcast()
	return true
}

// pop waits for the next item; false when the queue is closed.
func (q *queue) pop() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.closed {
		q.change.Wait()
	}
	if q.closed {
		return item{}, false
	}
	i := q.items[0]
	q.items[0] = item{}
	q.items = q.items[1:]
	q.bytes -= len(i.data) + 64
	q.change.Broadcast()
	return i, true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.items = nil
	q.change.Broadcast()
}
