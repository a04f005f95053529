// Package sim simulates a fleet: nodes, two controllers, a database, a bucket, an API server and
// clients, with a clock and a network of its own, and what breaks in them. The decisions are those
// of package fleet, which the server calls too.
//
// Everything follows from a seed, so a run that fails is repeated exactly. What must always hold is
// checked when it could first be broken; see oracle.go.
package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// A Config is the size of a simulated fleet.
type Config struct {
	Seed           uint64
	Nodes          int
	Claims, Turns  int
	Gone           int           // nodes that end for good
	Faults         time.Duration // faults happen until then, and claims and turns come
	Quiet          time.Duration // time after the last fault
	Every          time.Duration // mean time between two faults
	Capacity       uint64        // memory of a node, in MiB
	Life, Register time.Duration // longest life of a sandbox; between registrations of a node
	Keep           int           // events that are kept for the message of a failure
}

// An event is something that happens at a time.
type event struct {
	at    time.Duration
	order uint64
	run   func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return x
}

// A world is a simulated fleet.
type world struct {
	c      Config
	rules  rules
	random *rand.Rand
	now    time.Duration // the real time
	events queue
	order  uint64
	count  int
	trace  []string // the newest last
	failed error

	calm        bool // no faults any more
	cuts        map[[2]*host]bool
	db          *database
	bucket      *bucket
	api         *apiServer
	client      *host
	operator    *operator
	controllers [2]*controller
	nodes       []*node
	byName      map[string]*node
	oracle      oracle
}

// A host is a process, or a computer, of the fleet.
type host struct {
	name   string
	rate   float64 // of its monotonic clock
	off    time.Duration
	wall   time.Duration // its wall clock, against the monotonic one
	down   bool
	life   int // grows with each start
	wakes  time.Duration
	asleep bool
}

// clock is the host's monotonic clock.
func (w *world) clock(h *host) time.Duration {
	return time.Duration(float64(w.now-h.off) * h.rate)
}

func (w *world) at(at time.Duration, f func()) {
	w.order++
	heap.Push(&w.events, event{max(at, w.now), w.order, f})
}

func (w *world) after(d time.Duration, f func()) { w.at(w.now+d, f) }

// own runs f when a duration of the host's clock has passed, unless the host has ended since. A host
// that sleeps does it when it wakes.
func (w *world) own(h *host, d time.Duration, f func()) {
	life := h.life
	var run func()
	run = func() {
		switch {
		case h.life != life || h.down:
		case h.asleep:
			w.at(h.wakes, run)
		default:
			f()
		}
	}
	w.after(time.Duration(float64(d)/h.rate), run)
}

// every repeats f by the host's clock for as long as the host lives.
func (w *world) every(h *host, d time.Duration, f func()) {
	w.own(h, d, func() { f(); w.every(h, d, f) })
}

func (w *world) note(format string, args ...any) {
	if w.c.Keep == 0 {
		return
	}
	if len(w.trace) >= 2*w.c.Keep {
		w.trace = append(w.trace[:0], w.trace[len(w.trace)-w.c.Keep:]...)
	}
	w.trace = append(w.trace, fmt.Sprintf("%12.6f  ", w.now.Seconds())+fmt.Sprintf(format, args...))
}

// broken notes that something does not hold. The first one counts.
func (w *world) broken(format string, args ...any) {
	if w.failed == nil {
		w.note("BROKEN: "+format, args...)
		w.failed = fmt.Errorf(format, args...)
	}
}

func (w *world) chance(p float64) bool { return w.random.Float64() < p }

// between returns a time between two.
func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.random.Int64N(int64(b-a)+1))
}

// send delivers a message: late, twice, out of order, or not at all.
func (w *world) send(from, to *host, f func()) {
	if from.down || w.cut(from, to) || !w.calm && w.chance(0.01) {
		return
	}
	deliver := func() {
		delay := w.between(100*time.Microsecond, 5*time.Millisecond)
		if !w.calm && w.chance(0.03) {
			delay = w.between(0, 4*time.Second)
		}
		var arrive func()
		arrive = func() {
			switch {
			case to.down || w.cut(from, to):
			case to.asleep:
				w.at(to.wakes, arrive)
			default:
				f()
			}
		}
		w.after(delay, arrive)
	}
	deliver()
	if !w.calm && w.chance(0.02) {
		deliver()
	}
}

func (w *world) cut(a, b *host) bool { return w.cuts[[2]*host{a, b}] }

func (w *world) part(a, b *host, d time.Duration) {
	w.cuts[[2]*host{a, b}], w.cuts[[2]*host{b, a}] = true, true
	w.after(d, func() { delete(w.cuts, [2]*host{a, b}); delete(w.cuts, [2]*host{b, a}) })
}

// call sends a request and takes the first answer. done gets nil if none comes in time.
func (w *world) call(from, to *host, timeout time.Duration, handle func(reply func(any)), done func(any)) {
	answered := false
	finish := func(v any) {
		if !answered {
			answered = true
			done(v)
		}
	}
	life := from.life
	w.send(from, to, func() {
		handle(func(v any) {
			w.send(to, from, func() {
				if from.life == life {
					finish(v)
				}
			})
		})
	})
	w.own(from, timeout, func() { finish(nil) })
}

// run runs events until the end, or until something is broken.
func (w *world) run() error {
	end := w.c.Faults + w.c.Quiet
	for len(w.events) > 0 && w.failed == nil {
		e := heap.Pop(&w.events).(event)
		if e.at > end {
			break
		}
		w.now = e.at
		w.count++
		e.run()
	}
	if w.failed == nil {
		w.oracle.end(w)
	}
	return w.failed
}
