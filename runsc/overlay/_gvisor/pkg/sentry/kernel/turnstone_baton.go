// The baton of a deterministic sandbox: when a task starts, waits, stops, continues and ends. This
// file is added by Turnstone's build.

package kernel

import (
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/goid"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
)

// A turn is a task's wait for the baton.
type turn struct {
	t            *Task
	event, timer <-chan struct{} // the task blocks until one of them, or an interrupt
	stopped      bool            // the task waits for the end of its stops
	why          error           // result of the wait
	ready        bool
	granted      chan struct{}
}

// WrotePipe is called when t has written n bytes to a pipe. waitsForAgent reports that the pipe is
// full and that the agent reads it: when t blocks next, it keeps the baton, so that the agent's
// speed does not matter.
func (t *Task) WrotePipe(n int64, waitsForAgent bool) {
	t.wrote += n
	t.waitsForAgent = t.waitsForAgent || waitsForAgent
}

// prepareStart queues a new task. Its parent has the baton, or is the agent.
func (t *Task) prepareStart() {
	d := t.deterministic()
	if d == nil {
		return
	}
	// With CLONE_PARENT, a child of the agent has children that are the agent's too.
	created := d.running.Load() == goid.Get()
	parent := t.Parent()
	main := !created && parent != nil && parent.tg == d.agent &&
		t.PIDNamespace().IDOfThreadGroup(t.tg) != initTID
	w := &turn{t: t, ready: true, granted: make(chan struct{}, 1)}
	t.turn = w
	if t == t.tg.leader {
		t.owes = int64(processTime)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if main {
		d.mains[t.tg]++
	} else if n, ok := d.mains[t.tg]; ok {
		d.mains[t.tg] = n + 1
	}
	d.queue = append(d.queue, w)
	d.nextLocked()
}

// awaitStart waits until a new task may run.
func (t *Task) awaitStart() {
	if w := t.turn; w != nil {
		d := t.k.determinism.Load()
		w.await(d)
		d.mu.Lock()
		t.turn = nil
		d.mu.Unlock()
	}
}

// finish hands on the baton of a task whose goroutine ends.
func (t *Task) finish() {
	d := t.deterministic()
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, ok := d.mains[t.tg]; ok {
		if n--; n == 0 {
			delete(d.mains, t.tg)
		} else {
			d.mains[t.tg] = n
		}
	}
	d.leaveLocked(t)
	d.mark(t, false)
	d.nextLocked()
}

// await waits for the baton.
func (w *turn) await(d *determinism) {
	<-w.granted
	d.running.Store(goid.Get())
}

// enqueue hands on the baton, if w's task has it, and queues w.
func (d *determinism) enqueue(w *turn) {
	w.granted = make(chan struct{}, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.stopped {
		w.t.turn = w
	}
	d.leaveLocked(w.t)
	d.queue = append(d.queue, w)
	d.nextLocked()
}

// leaveLocked takes the baton from t, if t has it.
func (d *determinism) leaveLocked(t *Task) {
	if d.holder == t {
		d.holder = nil
		d.running.Store(0)
	}
}

// block is Task.block for a task that takes part.
func (d *determinism) block(t *Task, event, timer <-chan struct{}) error {
	t.prepareSleep()
	defer t.completeSleep()
	w := &turn{t: t, event: event, timer: timer}
	d.enqueue(w)
	w.await(d)
	if w.why == linuxerr.ErrInterrupted {
		t.interruptSelf()
	}
	return w.why
}

// blockUntil is BlockWithDeadlineFrom for a task that takes part, with a deadline.
func (t *Task) blockUntil(event <-chan struct{}, clock ktime.Clock, deadline ktime.Time) error {
	timer := clock.NewTimer(t.blockingTimerListener)
	timer.Set(ktime.Setting{Enabled: true, Next: deadline}, nil)
	err := t.block(event, t.blockingTimerChan)
	timer.Destroy()
	select {
	case <-t.blockingTimerChan: // it expired after the event
	default:
	}
	return err
}

// beginStop hands on the baton of a task that stops.
func (t *Task) beginStop() {
	if d := t.deterministic(); d != nil {
		d.enqueue(&turn{t: t, stopped: true})
	}
}

// endStop waits for the baton after a stop.
func (t *Task) endStop() {
	d := t.deterministic()
	if d == nil {
		return
	}
	d.mu.Lock()
	w := t.turn
	if t.turn = nil; w != nil {
		w.stopped, w.ready = false, true
	}
	d.mu.Unlock()
	if w == nil { // stopped before the sandbox became deterministic
		w = &turn{t: t, ready: true}
		d.enqueue(w)
	}
	w.await(d)
}

// yield lets the other tasks run that can.
func (t *Task) yield() {
	if d := t.deterministic(); d != nil {
		w := &turn{t: t, ready: true}
		d.enqueue(w)
		w.await(d)
	}
}

// rest yields if t has run for long.
func (t *Task) rest() {
	if d := t.k.determinism.Load(); d != nil && t.tg != d.agent && d.tired.Swap(false) {
		t.yield()
	}
}

// openLocked reports whether tasks run: as long as a main process exists.
func (d *determinism) openLocked() bool { return len(d.mains) > 0 }

// canRunLocked reports whether w's task can continue.
func (d *determinism) canRunLocked(w *turn) bool {
	if w.stopped {
		w.ready = w.t.stopCount.Load() == 0
	} else if !w.ready {
		select {
		case <-w.event:
			w.ready = true
			return d.mayRunLocked(w)
		default:
		}
		select {
		case <-w.t.interruptChan:
			w.ready, w.why = true, linuxerr.ErrInterrupted
			return d.mayRunLocked(w)
		default:
		}
		select {
		case <-w.timer:
			w.ready, w.why = true, linuxerr.ETIMEDOUT
		default:
		}
	}
	return w.ready && d.mayRunLocked(w)
}

// mayRunLocked reports whether w's task may run now. Without a main process only those may that end
// or stop.
func (d *determinism) mayRunLocked(w *turn) bool {
	return d.openLocked() || w.t.killed() || w.t.stopCount.Load() > 0 && !w.stopped
}

// nextLocked hands the baton to the next task that can continue.
func (d *determinism) nextLocked() {
	if d.holder != nil {
		return
	}
	if d.idling {
		select {
		case d.news <- struct{}{}:
		default:
		}
		return
	}
	if !d.chooseLocked() {
		d.idling = true
		d.idle <- struct{}{}
	}
}

// chooseLocked is nextLocked; it reports whether there is a next task.
func (d *determinism) chooseLocked() bool {
	for i, w := range d.queue {
		if d.canRunLocked(w) {
			d.queue = append(d.queue[:i], d.queue[i+1:]...)
			d.holder, d.used = w.t, 0
			d.tired.Store(false)
			w.granted <- struct{}{}
			return true
		}
	}
	return false
}
