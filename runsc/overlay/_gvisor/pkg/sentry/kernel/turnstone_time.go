// The virtual clocks and timers of a deterministic sandbox. This file is added by Turnstone's build.

package kernel

import (
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/goid"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	sentrytime "gvisor.dev/gvisor/pkg/sentry/time"
)

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

// nextTimer returns when the next timer expires that a jump of the clock may reach. A periodic timer
// that expired since all tasks wait, and woke none, wakes none the next time either: the clock
// does not stop at it again, because a timer of a nanosecond would keep all others from expiring.
func (d *determinism) nextTimer() (int64, bool) {
	next, waits := d.clock.NextInRound()
	return next.Nanoseconds(), waits && next.Nanoseconds() <= int64(horizon)
}

// enterSyscall accounts for a system call of t.
func (t *Task) enterSyscall() {
	d := t.deterministic()
	if d == nil {
		return
	}
	d.mark(t, false)
	d.calls.Add(1)
	took := int64(callTime) + t.wrote*int64(byteTime)
	if d.used += took; d.used > int64(slice) && !d.tired.Swap(true) {
		took += int64(busyTime)
	}
	switch t.Arch().SyscallNo() {
	case unix.SYS_EXECVE, unix.SYS_EXECVEAT:
		took += int64(processTime)
	}
	d.advance(d.now.Load() + took + t.owes)
	t.wrote, t.owes = 0, 0
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
