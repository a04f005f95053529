// Deterministic sandboxes: seeded random numbers, a virtual clock, and one program at a time. This
// file is added by Turnstone's build.

package kernel

import (
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/goid"
	seeds "gvisor.dev/gvisor/pkg/rand"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
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
	// horizon is the age that a jump of the clock does not pass. A task that waits for a later time
	// waits until something else ends its wait: no clock overflows, in nanoseconds since 1970.
	horizon = uptime + 100*year
	year    = 365 * 24 * time.Hour
	// latest is the latest start of the clock.
	latest = math.MaxInt64 - int64(horizon+10*year)
	// callTime is the virtual time that a system call takes.
	callTime = time.Microsecond
	// callBatch is the number of a task's system calls after which its CPU clocks advance.
	callBatch = 64
	// byteTime is the virtual time that a byte takes that is written to a pipe.
	byteTime = 10 * time.Nanosecond
	// processTime is the virtual time that a new process takes, and a new program.
	processTime = 2 * time.Millisecond
	// slice is the virtual time of system calls in a row, and of their bytes, after which a task
	// lets others run. A whole slice takes busyTime in addition. A task that never waits thus takes
	// about as much virtual time as real time, and the others sleep no longer than they ask for.
	slice    = 10 * time.Millisecond
	busyTime = 9 * slice
	// patience is the real time that a task may run without a system call while others wait.
	patience = 5 * time.Second
	// hogTime is the same for a task that has used up patience, until its next system call.
	hogTime = patience / 50
)

// A determinism makes the programs of a sandbox run in the same way each time. It concerns all
// tasks but those of the agent, the sandbox's first process:
//
//   - Only the task with the baton runs. It hands the baton on when it blocks, stops or ends. The
//     next is, of the tasks that can continue, the one that has waited longest. Whether a task can
//     continue is asked at that moment only, so that the order in which Go's scheduler wakes
//     goroutines does not matter.
//   - Random numbers that the task with the baton reads come from a seed.
//   - The clock advances by a fixed time for each system call, each new process and each byte that
//     is written to a pipe, and to the next timer when all tasks wait. It stands still when no main
//     process exists: a child of the agent, such as a step's shell. Tasks that live on do not run
//     then either.
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
	tired   atomic.Bool  // the task with the baton has to hand it on
	used    int64        // by the task with the baton, of its slice
	hogs    atomic.Int64 // the tasks that are marked

	mu     sync.Mutex
	holder *Task // has the baton
	queue  []*turn
	mains  map[*ThreadGroup]int // tasks of the main processes
	idling bool                 // idle chooses the next holder
	idle   chan struct{}        // starts idle
	news   chan struct{}        // tells idle about a change
}

// A determinismPointer is nil in a sandbox that is not deterministic.
type determinismPointer struct{ atomic.Pointer[determinism] }

// A hogMark marks a task that computes for longer than patience.
type hogMark struct{ atomic.Bool }

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
	if k.RootPIDNamespace().IDOfThreadGroup(t.tg) != initTID || start < int64(uptime) ||
		start > latest {
		return linuxerr.EINVAL // as of an unknown option
	}
	d := &determinism{k: k, agent: t.tg, random: rand.NewChaCha8(seed),
		mains: make(map[*ThreadGroup]int), idle: make(chan struct{}, 1),
		news: make(chan struct{}, 1)}
	d.now.Store(int64(uptime))
	d.offset = start - int64(uptime)
	d.clock.Store(ktime.FromNanoseconds(int64(uptime)))
	d.clock.NewRound() // the first: timers that never expired have 0
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

// read fills p with random numbers from the seed if the caller has the baton.
func (d *determinism) read(p []byte) bool {
	if d.running.Load() != goid.Get() {
		return false
	}
	_, _ = d.random.Read(p) // never fails
	return true
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
