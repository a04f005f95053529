// What happens in a deterministic sandbox while all tasks wait, or while one computes for long. This
// file is added by Turnstone's build.

package kernel

import (
	"reflect"
	"time"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
)

const (
	// stillness is how often the agent has to be found waiting, and the pause before each look,
	// before the clock jumps.
	stillness = 2
	glance    = 50 * time.Microsecond
	// longPause bounds the time between looks for changes that nothing tells of.
	longPause = 20 * time.Millisecond
	// watched bounds the tasks whose events end a pause. reflect.Select accepts 65,536 cases.
	watched = 1024
)

// wait chooses the next task when none can continue at once, and moves the clock to the next timer
// when all wait.
func (d *determinism) wait() {
	timer := time.NewTimer(longPause)
	net := newTraffic(d.k.RootNetworkNamespace().Stack())
	for range d.idle {
		d.clock.NewRound()
		pause, still := glance, 0
		d.mu.Lock()
		for !d.chooseLocked() {
			open := d.openLocked()
			d.mu.Unlock()
			next, waits := d.nextTimer()
			if waits = waits && open; waits {
				pause = glance
				if !net.settled() {
					pause = 4 * glance
				} else if still >= stillness {
					still = 0
					d.advance(next)
					d.mu.Lock()
					continue
				}
			}
			if d.pause(timer, pause); d.quiet() {
				still++
			} else {
				still = 0
			}
			pause = min(2*pause, longPause)
			d.mu.Lock()
		}
		d.idling = false
		d.mu.Unlock()
	}
}

// pause waits for the end of a pause, or for what idle waits for if the pause is long. Preparing the
// latter takes as long as a short pause.
func (d *determinism) pause(timer *time.Timer, long time.Duration) {
	timer.Reset(long)
	if long <= 4*glance {
		<-timer.C
		return
	}
	d.mu.Lock()
	cases := d.casesLocked()
	d.mu.Unlock()
	cases[0].Chan = reflect.ValueOf(timer.C)
	if i, _, _ := reflect.Select(cases); i >= 2 {
		d.mu.Lock()
		d.arrivedLocked(i - 2)
		d.mu.Unlock()
	}
}

// casesLocked returns what idle waits for: a timer, news, and the events, interrupts and timers of
// the tasks that have waited longest. The timer comes soon enough for the others.
func (d *determinism) casesLocked() []reflect.SelectCase {
	receive := func(c any) reflect.SelectCase {
		return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
	}
	queue := d.queue[:min(len(d.queue), watched)]
	cases := append(make([]reflect.SelectCase, 0, 2+3*len(queue)), reflect.SelectCase{
		Dir: reflect.SelectRecv}, receive(d.news))
	for _, w := range queue {
		event, interrupt, timer := w.event, (<-chan struct{})(w.t.interruptChan), w.timer
		if w.ready || w.stopped {
			event, interrupt, timer = nil, nil, nil
		}
		cases = append(cases, receive(event), receive(interrupt), receive(timer))
	}
	return cases
}

// arrivedLocked records that channel i of the waiting tasks was received from.
func (d *determinism) arrivedLocked(i int) {
	w := d.queue[i/3]
	w.ready, w.why = true, [...]error{nil, linuxerr.ErrInterrupted, linuxerr.ETIMEDOUT}[i%3]
}

// stoppedOrBlocked reports whether t does nothing.
func (t *Task) stoppedOrBlocked() bool {
	switch t.TaskGoroutineState() {
	case TaskGoroutineBlockedInterruptible, TaskGoroutineStopped, TaskGoroutineNonexistent:
		return true
	}
	return false
}

// quiet reports whether the agent waits.
func (d *determinism) quiet() bool {
	d.k.tasks.mu.RLock()
	defer d.k.tasks.mu.RUnlock()
	for t := d.agent.tasks.Front(); t != nil; t = t.Next() {
		if !t.stoppedOrBlocked() {
			return false
		}
	}
	return true
}

// watch makes a task that runs without a system call hand on the baton after patience.
func (d *determinism) watch() {
	var last uint64
	var who *Task
	for since := time.Now(); ; time.Sleep(d.glances()) {
		calls := d.calls.Load()
		d.mu.Lock()
		holder := d.holder
		if holder != nil && holder.TaskGoroutineState() == TaskGoroutineStopped &&
			holder.stopCount.Load() > 0 && holder.turn != nil {
			// It was stopped again before its goroutine saw the end of its last stop.
			d.revokeLocked(holder)
		}
		d.mu.Unlock()
		if holder == nil || holder != who || calls != last ||
			holder.TaskGoroutineState() != TaskGoroutineRunningApp {
			who, last, since = holder, calls, time.Now()
			continue
		}
		limit := patience
		if holder.hog.Load() {
			limit = hogTime
		}
		if time.Since(since) < limit {
			continue
		}
		since = time.Now()
		if _, waits := d.clock.NextExpiration(); waits {
			d.advance(d.now.Load() + int64(limit))
		}
		d.mu.Lock()
		if d.holder == holder && len(d.queue) > 0 {
			d.mark(holder, true)
			d.tired.Store(true)
			holder.p.Interrupt()
		}
		d.mu.Unlock()
	}
}

// mark records whether t computes for longer than patience.
func (d *determinism) mark(t *Task, hog bool) {
	if t.hog.Load() == hog || !t.hog.CompareAndSwap(!hog, hog) {
		return
	}
	if hog {
		d.hogs.Add(1)
	} else {
		d.hogs.Add(-1)
	}
}

// glances returns how often watch looks.
func (d *determinism) glances() time.Duration {
	if d.hogs.Load() > 0 {
		return hogTime / 5
	}
	return patience / 5
}

// revokeLocked takes the baton from a stopped task that has not seen it yet.
func (d *determinism) revokeLocked(t *Task) {
	w := t.turn
	select {
	case <-w.granted:
	default:
		return
	}
	d.holder = nil
	d.queue = append(d.queue, w)
	d.nextLocked()
}
