package cdp

import "sync"

// maxQueue bounds the bytes that wait for a session's agent, in addition to the message that
// exceeds the bound. A stream's window is 1 MiB, so 16 concurrent uploads reach the bound only if
// the sandbox is slow.
const maxQueue = 16 << 20

// An item is a message for an agent.
type item struct {
	text bool
	data []byte
}

// A queue holds the messages that an agent has not read yet.
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

// push waits while the queue is full, and reports whether the queue is open.
func (q *queue) push(i item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= maxQueue && !q.closed {
		q.change.Wait()
	}
	return q.add(i)
}

// offer is push without waiting: it reports a full queue.
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
	q.bytes += len(i.data) + 64 // an item's overhead in addition to its data
	q.change.Broadcast()
	return true
}

// pop waits for the next item; it returns false when the queue is closed.
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
