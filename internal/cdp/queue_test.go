package cdp

import (
	"testing"
	"time"
)

// TestExpectEnded: an ended session accepts no command, even from an earlier lookup.
func TestExpectEnded(t *testing.T) {
	s := &session{pending: map[int64]int{}}
	if ok, ended := s.expect(1); !ok || ended {
		t.Error(ok, ended)
	}
	s.pending = nil
	if ok, ended := s.expect(2); ok || !ended {
		t.Error(ok, ended)
	}
}

func TestQueue(t *testing.T) {
	q := newQueue()
	big := item{data: make([]byte, maxQueue)}
	if !q.push(big) {
		t.Fatal("closed")
	}
	pushed := make(chan bool, 2)
	go func() { pushed <- q.push(item{text: true}) }()
	select {
	case <-pushed:
		t.Fatal("a full queue took more")
	case <-time.After(50 * time.Millisecond): //wait: longer only makes the check stricter
	}
	if i, ok := q.pop(); !ok || len(i.data) != maxQueue {
		t.Error("another item")
	}
	if !<-pushed {
		t.Error("closed")
	}
	q.push(big)
	go func() { pushed <- q.push(big) }()
	time.Sleep(20 * time.Millisecond) //wait: any moment is right: it may come before the push
	q.close()
	if <-pushed {
		t.Error("a closed queue took an item")
	}
	if _, ok := q.pop(); ok {
		t.Error("a closed queue gave an item")
	}
}

// TestQueueOffer: offer does not wait.
func TestQueueOffer(t *testing.T) {
	q := newQueue()
	if added, full := q.offer(item{data: make([]byte, maxQueue)}); !added || full {
		t.Error(added, full)
	}
	if added, full := q.offer(item{}); added || !full {
		t.Error(added, full)
	}
	q.close()
	if added, full := q.offer(item{}); added || full {
		t.Error(added, full)
	}
}
