package cdp

import "sync"

// maxQueue bounds what waits for one session's agent, in bytes, beside the one
// message that went over it. A stream's window is 1 MiB, so that a client does not
// come so far with 16 uploads at one time, however slow the sandbox is.
const maxQueue = 16 << 20

// An item is a message on its way to an agent.
type item struct {
	text bool
	data []byte
}

// A queue holds what an agent has not taken yet.
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

// push waits while the queue is full, and reports whether it is still open.
func (q *queue) push(i item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= maxQueue && !q.closed {
		q.change.Wait()
	}
	return q.add(i)
}

// offer is push that does not wait: it reports a full queue instead.
func (q *queue) offer(i item) (added, full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes >= maxQueue && !q.closed {
		return false, true
	}
	return q.add(i), false
}

func (q *queue) add(i item) bool {
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
