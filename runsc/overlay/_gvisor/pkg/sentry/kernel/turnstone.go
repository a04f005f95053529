// Deterministic sandboxes: seeded random numbers, a virtual clock, and one program at a time. This
// file is added by Turnstone's build.

package kernel

import (
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/goid"
	seeds "gvisor.dev/gvisor/pkg/rand"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	sentrytime "gvisor.dev/gvisor/pkg/sentry/time"
	"gvisor.dev/gvisor/pkg/sync"
)

const (
	// TurnstonePrctl is the option of prctl(2) by which the sandbox's first process makes its
	// sandbox deterministic. Its argument is the address of TurnstoneSize bytes: the seed, and the
	// time at which the clock starts, in nanoseconds since 1970, in the machine's byte order.
	TurnstonePrctl = 0x5475726e
	TurnstoneSize  = 40

	// uptime is the age of a deterministic sandbox at its start.
	uptime = 100 * time.Second
	// callTime is the virtual time that a system call takes.
	callTime = time.Microsecond
	// callBatch is the number of a task's system calls after which its CPU clocks advance.
	callBatch = 64
	// callsInRow is the number of system calls after which a task lets others run.
	callsInRow = 10_000
	// patience is the real time that a task may run without a system call while others wait.
	patience = 5 * time.Second
)

// A determinism makes the programs of a sandbox run in the same way each time. It concerns all
// tasks but those of the agent, the sandbox's first process:
//
//   - Only the task with the baton runs. It hands the baton on when it blocks, stops or ends. The
//     next is, of the tasks that can continue, the one that has waited longest. Whether a task can
//     continue is asked at that moment only, so that the order in which Go's scheduler wakes
//     goroutines does not matter.
//   - Random numbers that the task with the baton reads come from a seed.
//   - The clock advances by a fixed time for each system call, and to the next timer when all tasks
//     wait. It stands still when no main process exists: a child of the agent, such as a step's
//     shell. Tasks that live on do not run then either.
//
// The agent sees the real monotonic time and the virtual real time.
type determinism struct {
	k     *Kernel
	agent *ThreadGroup

	random *rand.ChaCha8 // used by the goroutine with the baton only

	now    atomic.Int64 // the virtual monotonic time
	offset int64        // of the real time from the monotonic time
	clock  ktime.SyntheticClock
	page   clockPage // shows now to the programs

	running atomic.Int64 // the goroutine of the task with the baton; 0: none
	calls   atomic.Uint64
	tired   atomic.Bool // the task with the baton has to hand it on

	mu     sync.Mutex
	holder *Task  // has the baton
	first  uint64 // value of calls when holder got the baton
	queue  []*turn
	mains  map[*ThreadGroup]int // tasks of the main processes
	idling bool                 // idle chooses the next holder
	idle   chan struct{}        // starts idle
	news   chan struct{}        // tells idle about a change
}

// A determinismPointer is nil in a sandbox that is not deterministic.
type determinismPointer struct{ atomic.Pointer[determinism] }

// A turn is a task's wait for the baton.
type turn struct {
	t            *Task
	event, timer <-chan struct{} // the task blocks until one of them, or an interrupt
	stopped      bool            // the task waits for the end of its stops
	why          error           // result of the wait
	ready        bool
	granted      chan struct{}
}

// deterministic returns the determinism that t takes part in, or nil.
func (t *Task) deterministic() *determinism {
	d := t.k.determinism.Load()
	if d == nil || t.tg == d.agent {
		return nil
	}
	return d
}

// IsDeterministic reports whether the sandbox is deterministic.
func (k *Kernel) IsDeterministic() bool { return k.determinism.Load() != nil }

// IsAgent reports whether t belongs to the first process of a deterministic sandbox.
func (t *Task) IsAgent() bool {
	d := t.k.determinism.Load()
	return d != nil && t.tg == d.agent
}

// BeginDeterministic makes t's sandbox deterministic. Only the sandbox's first process may call it,
// once.
func (t *Task) BeginDeterministic(seed [32]byte, start int64) error {
	k := t.k
	if k.RootPIDNamespace().IDOfThreadGroup(t.tg) != initTID || start < int64(uptime) {
		return linuxerr.EINVAL // as of an unknown option
	}
	d := &determinism{k: k, agent: t.tg, random: rand.NewChaCha8(seed),
		mains: make(map[*ThreadGroup]int), idle: make(chan struct{}, 1),
		news: make(chan struct{}, 1)}
	d.now.Store(int64(uptime))
	d.offset = start - int64(uptime)
	d.clock.Store(ktime.FromNanoseconds(int64(uptime)))
	boot := ktime.FromNanoseconds(d.offset)
	k.tasks.mu.Lock()
	if k.determinism.Load() != nil {
		k.tasks.mu.Unlock()
		return linuxerr.EBUSY
	}
	k.tasks.forEachTaskLocked(func(t *Task) {
		if t.tg != d.agent {
			t.mu.Lock()
			t.startTime = boot
			t.mu.Unlock()
		}
	})
	k.determinism.Store(d)
	k.tasks.mu.Unlock()
	k.userCPUClock.Store(0)
	k.userSysCPUClock.Store(0)
	k.timekeeper.begin(d, boot)
	seeds.SetSeeded(d.read)
	go d.wait()
	go d.watch()
	return nil
}

// begin makes the clocks virtual.
func (tk *Timekeeper) begin(d *determinism, boot ktime.Time) {
	tk.bootTime = boot
	tk.determinism.Store(d)
	tk.updateMu.Lock()
	defer tk.updateMu.Unlock()
	if tk.params != nil {
		d.page = openClockPage(tk.params)
		d.page.show(d.now.Load())
		tk.update(false) // the vDSO knows no time from here on
	}
}

// read fills p with random numbers from the seed if the caller has the baton.
func (d *determinism) read(p []byte) bool {
	if d.running.Load() != goid.Get() {
		return false
	}
	_, _ = d.random.Read(p) // never fails
	return true
}

// time returns the time that the caller sees on a clock; false: the real one.
func (d *determinism) time(c sentrytime.ClockID) (ktime.Time, bool) {
	now := d.now.Load()
	if c == sentrytime.Realtime {
		return ktime.FromNanoseconds(now + d.offset), true
	}
	return ktime.FromNanoseconds(now), d.running.Load() == goid.Get()
}

// A virtualTimer is a timer of one of the virtual clocks.
type virtualTimer struct {
	ktime.SyntheticTimer
	of     ktime.Clock
	offset time.Duration // of the clock from the virtual monotonic clock
}

// newTimer returns a timer of a virtual clock.
func (d *determinism) newTimer(tc *timekeeperClock, l ktime.Listener) ktime.Timer {
	v := &virtualTimer{of: tc}
	if tc.c == sentrytime.Realtime {
		v.offset = time.Duration(d.offset)
	}
	v.Init(&d.clock, l)
	return v
}

// timer returns a virtual timer if the caller has the baton, and otherwise nil.
func (tc *timekeeperClock) timer(l ktime.Listener) ktime.Timer {
	d := tc.tk.determinism.Load()
	if d == nil || d.running.Load() != goid.Get() {
		return nil
	}
	return d.newTimer(tc, l)
}

// newRealTimer returns the timer of a new thread group's ITIMER_REAL.
func (tk *Timekeeper) newRealTimer(l ktime.Listener) ktime.Timer {
	if d := tk.determinism.Load(); d != nil {
		return d.newTimer(tk.monotonicClock, l)
	}
	return ktime.NewSampledTimer(tk.monotonicClock, l)
}

// Clock implements ktime.Timer.Clock.
func (v *virtualTimer) Clock() ktime.Clock { return v.of }

// Get implements ktime.Timer.Get.
func (v *virtualTimer) Get() (ktime.Time, ktime.Setting) { return v.out(v.SyntheticTimer.Get()) }

// Set implements ktime.Timer.Set.
func (v *virtualTimer) Set(s ktime.Setting, f func()) (ktime.Time, ktime.Setting) {
	if s.Enabled {
		// The synthetic clock has no time before 0.
		s.Next = ktime.FromNanoseconds(max(0, s.Next.Add(-v.offset).Nanoseconds()))
	}
	return v.out(v.SyntheticTimer.Set(s, f))
}

func (v *virtualTimer) out(now ktime.Time, s ktime.Setting) (ktime.Time, ktime.Setting) {
	if s.Enabled {
		s.Next = s.Next.Add(v.offset)
	}
	return now.Add(v.offset), s
}

// advance moves the clock forward, and fires the timers that are due. The caller holds no locks.
func (d *determinism) advance(to int64) {
	for {
		now := d.now.Load()
		if now >= to || d.now.CompareAndSwap(now, to) {
			break
		}
	}
	d.page.show(d.now.Load())
	d.clock.Store(ktime.FromNanoseconds(d.now.Load()))
}

// enterSyscall accounts for a system call of t.
func (t *Task) enterSyscall() {
	d := t.deterministic()
	if d == nil {
		return
	}
	if d.calls.Add(1)-d.first > callsInRow {
		d.tired.Store(true)
	}
	d.advance(d.now.Load() + int64(callTime))
	t.waitsForAgent = false
	if t.calls++; t.calls%callBatch == 0 {
		t.advanceCPU(callBatch * callTime)
	}
}

// advanceCPU advances the clocks of the CPU time that t used.
func (t *Task) advanceCPU(by time.Duration) {
	t.appCPUClock.Add(by)
	t.tg.appCPUClockLast.Store(t)
	t.tg.appCPUClock.Add(by)
	t.appSysCPUClock.Add(by)
	t.tg.appSysCPUClockLast.Store(t)
	t.tg.appSysCPUClock.Add(by)
	t.k.userCPUClock.Add(int64(by))
	t.k.userSysCPUClock.Add(int64(by))
}

// WaitsForAgent is called before t blocks because of something that only the agent changes, such as
// a full pipe that the agent reads. t keeps the baton: how fast the agent is does not matter.
func (t *Task) WaitsForAgent() { t.waitsForAgent = true }

// prepareStart queues a new task. Its parent has the baton, or is the agent.
func (t *Task) prepareStart() {
	d := t.deterministic()
	if d == nil {
		return
	}
	parent := t.Parent()
	main := parent != nil && parent.tg == d.agent &&
		t.PIDNamespace().IDOfThreadGroup(t.tg) != initTID
	w := &turn{t: t, ready: true, granted: make(chan struct{}, 1)}
	t.turn = w
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
		t.turn = nil
		w.await(t.k.determinism.Load())
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
		t.turn = &turn{t: t, stopped: true}
		d.enqueue(t.turn)
	}
}

// endStop waits for the baton after a stop.
func (t *Task) endStop() {
	d := t.deterministic()
	if d == nil {
		return
	}
	w := t.turn
	if t.turn = nil; w == nil { // stopped before the sandbox became deterministic
		w = &turn{t: t, ready: true}
		d.enqueue(w)
	}
	d.mu.Lock()
	w.stopped, w.ready = false, true
	d.mu.Unlock()
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
			d.holder, d.first = w.t, d.calls.Load()
			d.tired.Store(false)
			w.granted <- struct{}{}
			return true
		}
	}
	return false
}

const (
	// stillness is how often the agent has to be found waiting, and the pause before each look,
	// before the clock jumps.
	stillness = 2
	glance    = 50 * time.Microsecond
	// longPause bounds the time between looks for changes that nothing tells of.
	longPause = 20 * time.Millisecond
)

// wait chooses the next task when none can continue at once, and moves the clock to the next timer
// when all wait.
func (d *determinism) wait() {
	timer := time.NewTimer(longPause)
	for range d.idle {
		pause, still := glance, 0
		d.mu.Lock()
		for !d.chooseLocked() {
			cases := d.casesLocked()
			open := d.openLocked()
			d.mu.Unlock()
			next, waits := d.clock.NextExpiration()
			if waits = waits && open; waits {
				pause = glance
				if still == stillness {
					still = 0
					d.advance(next.Nanoseconds())
					d.mu.Lock()
					continue
				}
			}
			timer.Reset(pause)
			pause = min(2*pause, longPause)
			cases[0].Chan = reflect.ValueOf(timer.C)
			i, _, _ := reflect.Select(cases)
			if still++; i != 0 || !d.quiet() {
				still = 0
			}
			d.mu.Lock()
			if i >= 2 {
				d.arrivedLocked(i - 2)
			}
		}
		d.idling = false
		d.mu.Unlock()
	}
}

// casesLocked returns what idle waits for: a timer, news, and the events, interrupts and timers of
// the waiting tasks.
func (d *determinism) casesLocked() []reflect.SelectCase {
	receive := func(c any) reflect.SelectCase {
		return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
	}
	cases := append(make([]reflect.SelectCase, 0, 2+3*len(d.queue)), reflect.SelectCase{
		Dir: reflect.SelectRecv}, receive(d.news))
	for _, w := range d.queue {
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
	for since := time.Now(); ; time.Sleep(patience / 5) {
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
		if time.Since(since) < patience {
			continue
		}
		since = time.Now()
		if _, waits := d.clock.NextExpiration(); waits {
			d.advance(d.now.Load() + int64(patience))
		}
		d.mu.Lock()
		if d.holder == holder && len(d.queue) > 0 {
			d.tired.Store(true)
			holder.p.Interrupt()
		}
		d.mu.Unlock()
	}
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

// inOrder returns the keys of tasks, a set that t has, in the order of their creation if t takes part
// in a determinism, and otherwise in any order. The caller has locked the TaskSet.
func (t *Task) inOrder(tasks map[*Task]struct{}) iter.Seq[*Task] {
	if t.deterministic() == nil || len(tasks) < 2 {
		return maps.Keys(tasks)
	}
	ids := t.tg.pidns.tids
	return slices.Values(slices.SortedFunc(maps.Keys(tasks), func(a, b *Task) int {
		return int(ids[a]) - int(ids[b])
	}))
}

// ShownTasks returns the number of tasks that sysinfo(2) shows to t.
func (t *Task) ShownTasks() int {
	if t.deterministic() != nil {
		return t.PIDNamespace().NumTasks()
	}
	return t.k.tasks.Root.NumTasks()
}

// ShownRunning returns the number of running tasks that /proc/stat shows.
func (k *Kernel) ShownRunning() int64 {
	if k.IsDeterministic() {
		return 1
	}
	return k.RunningTasks()
}

// haveTicks reports whether the ticker advances CPU clocks.
func (k *Kernel) haveTicks() bool { return k.determinism.Load() == nil }
