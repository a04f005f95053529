package main

// An edit replaces a piece of one of gVisor's files. The file must contain the piece exactly once:
// after an update of gVisor that changes the piece, a person must review the edit.
type edit struct {
	name     string // what the build names when the piece is not found
	file     string // in gVisor's module
	old, new string
}

// edits are the changes to gVisor's files, together with erofsEdits and overlayEdits. Additions that
// can be separate files are in _gvisor.
var edits = []edit{
	// Times before 1970 that are no whole seconds: the nanoseconds count from the second before.
	{"times before 1970", "pkg/abi/linux/time.go", `	return StatxTimestamp{
		Sec:  nsec / 1e9,
		Nsec: uint32(nsec % 1e9),
	}
`, `	sec := nsec / 1e9
	if nsec%1e9 < 0 {
		sec--
	}
	return StatxTimestamp{
		Sec:  sec,
		Nsec: uint32(nsec - sec*1e9),
	}
`},

	// A file store for a tmpfs comes from the gofer's view of the file system. No gofer runs if all
	// mounts are EROFS images.
	insert("runsc: file stores without a gofer, the path", "runsc/container/container.go",
		`	goferRootfs := fmt.Sprintf("/proc/%d/root", c.GoferPid.Load())
`, `	if c.GoferPid.Load() == 0 {
		goferRootfs = "/proc/self/root"
	}
`),
	{"runsc: file stores without a gofer, made", "runsc/container/container.go", `		cu.Release()
		return ioFiles, nil, nil, nil, nil
	}
`, `		filestores, err := c.createGoferFilestores(conf.GetOverlay2(), mountHints)
		if err != nil {
			return nil, nil, nil, nil, fmt.Errorf("creating file stores: %w", err)
		}
		cu.Release()
		return ioFiles, filestores, nil, nil, nil
	}
`},

	// Limits of a sandbox without a cgroup.
	{"runsc: limits of a sandbox without a cgroup", "runsc/sandbox/sandbox.go",
		`		if memLimit < mem {
			mem = memLimit
		}
	}
	cmd.Args = append(cmd.Args, "--total-memory", strconv.FormatUint(mem, 10))
`, `		if memLimit < mem {
			mem = memLimit
		}
	} else {
		mem = tellResources(cmd, args.Spec, mem)
	}
	cmd.Args = append(cmd.Args, "--total-memory", strconv.FormatUint(mem, 10))
`},

	// A limit on what root in a sandbox can add to the host's process table.
	insert("runsc: a limit of the host's processes", "runsc/cmd/sentry/sentrycmd/boot.go",
		`		timer.Reached("FD limit applied")
	}
`, `	if err := limitProcesses(spec); err != nil {
		util.Fatalf("Failed to limit processes: %v", err)
	}
`),

	// An ordinary user who is root in a separate user namespace may restore. gVisor rejects this
	// because the command restore, unlike run, does not create that namespace.
	{"runsc: restore by an ordinary user", "runsc/cmd/restore.go", `	if conf.Rootless {
		return util.Errorf("Rootless mode not supported with %q", r.Name())
	}
`, `	if conf.Rootless && os.Geteuid() != 0 {
		return util.Errorf("Rootless mode not supported with %q outside of a user namespace", r.Name())
	}
`},

	// CPUs and threads: the sandbox sees its configured number of CPUs, and the same number of
	// threads runs the code of each process. gVisor's kernel has at least two threads.
	{"threads: of the kernel", "runsc/boot/loader.go", `	gomaxprocs.SetBase(args.NumCPU)
`, `	gomaxprocs.SetBase(kernelThreads(args.NumCPU))
`},
	insert("threads: of a process in the sandbox", "pkg/sentry/platform/systrap/systrap.go",
		`		maxSysmsgThreads = runtime.GOMAXPROCS(0)
`, `		if opts.ApplicationCores > 0 {
			maxSysmsgThreads = opts.ApplicationCores
		}
`),

	// One program instead of three: the sandbox's process neither executes itself again to drop its
	// capabilities, nor executes a helper to unmount /proc.
	{"runsc: rights are given away without another execution", "runsc/cmd/sentry/sentrycmd/boot.go",
		`		if !conf.Rootless {
			// /proc is umounted from a forked process, because the
`, `		if !b.applyCaps {
			b.renounce(timer)
		} else if !conf.Rootless {
			// /proc is umounted from a forked process, because the
`},

	// The build compiles the seccomp filter, as gVisor's own build does. One rule contains the ID
	// of the process that compiles the filter, but needs the ID of the sandbox's process.
	insert("seccomp: the compiled filter", "runsc/boot/filter/filter_precompiled.go",
		`	programs := make(map[string]precompiledseccomp.Program)
`, `	registerTurnstone(programs)
`),
	{"seccomp: the process's number is known later", "pkg/sentry/platform/systrap/filters.go",
		`			seccomp.EqualTo(os.Getpid()),
`, `			seccomp.EqualTo(vars.GetUint64("self_pid")),
`},
	{"seccomp: the process's number is known later, import", "pkg/sentry/platform/systrap/filters.go",
		`import (
	"os"

`, `import (
`},

	// Clocks: each read of one is a system call until the vDSO knows their rates, which takes two
	// samples, one second apart. A restored sandbox has done its work by then.
	soonReady("at the start", "		", "		t.updaterState.Store(updaterActive)\n"),
	soonReady("at the first use", "			", "		}\n"),
	{"clocks: no rate of samples that are too close", "pkg/sentry/time/calibrated_clock.go",
		"	c.updateParams(Parameters{\n", `	if !c.ready && maxHz-minHz > maxHz/1000 {
		return Parameters{}, false
	}
	c.updateParams(Parameters{
`},

	// Deterministic sandboxes: see pkg/sentry/kernel/turnstone.go.
	insert("deterministic: random numbers", "pkg/rand/rand_linux.go",
		`func (b *bufferedReader) Read(p []byte) (int, error) {
`, `	if readSeeded(p) {
		return len(p), nil
	}
`),
	insert("deterministic: of the kernel", "pkg/sentry/kernel/kernel.go", `type Kernel struct {
`, `	determinism determinismPointer `+"`state:\"nosave\"`"+`

`),
	insert("deterministic: of a task", "pkg/sentry/kernel/task.go", `type Task struct {
	taskNode
`, `
	turn          *turn  `+"`state:\"nosave\"`"+` // while stopped or not started yet
	waitsForAgent bool   `+"`state:\"nosave\"`"+`
	calls         uint64 `+"`state:\"nosave\"`"+`
	wrote         int64  `+"`state:\"nosave\"`"+` // bytes to pipes, since its last system call
	owes          int64  `+"`state:\"nosave\"`"+` // time that its next system call takes longer
	hog           hogMark `+"`state:\"nosave\"`"+`
`),
	insert("deterministic: of the clocks", "pkg/sentry/kernel/timekeeper.go",
		`type Timekeeper struct {
`, `	determinism determinismPointer `+"`state:\"nosave\"`"+`

`),
	insert("deterministic: no time in the vDSO", "pkg/sentry/kernel/timekeeper.go",
		`		var p vdsoParams
`, `		if t.determinism.Load() != nil {
			return p
		}
`),
	insert("deterministic: virtual clocks", "pkg/sentry/kernel/timekeeper.go",
		`func (tc *timekeeperClock) Now() ktime.Time {
`, `	if d := tc.tk.determinism.Load(); d != nil {
		if now, virtual := d.time(tc.c); virtual {
			return now
		}
	}
`),
	insert("deterministic: virtual timers", "pkg/sentry/kernel/timekeeper.go",
		`func (tc *timekeeperClock) NewTimer(l ktime.Listener) ktime.Timer {
`, `	if t := tc.timer(l); t != nil {
		return t
	}
`),
	insert("deterministic: rounds of a clock", "pkg/sentry/ktime/synthetic_timer.go",
		`type SyntheticClock struct {
`, `	// round counts the rounds of Turnstone's virtual clock. It is protected by mu.
	round uint64 `+"`state:\"nosave\"`"+`

`),
	insert("deterministic: rounds of a timer", "pkg/sentry/ktime/synthetic_timer.go",
		`type SyntheticTimer struct {
`, `	// expiredIn is the clock's last round in which the timer expired. It is protected by clock.mu.
	expiredIn uint64 `+"`state:\"nosave\"`"+`

`),
	insert("deterministic: a timer expires", "pkg/sentry/ktime/synthetic_timer.go",
		`			t.setting = s
			t.listener.NotifyTimer(exp)
`, `			t.expiredIn = c.round
`),
	{"deterministic: interval timers, the field", "pkg/sentry/kernel/thread_group.go",
		`	itimerRealTimer    *ktime.SampledTimer
`, `	itimerRealTimer    ktime.Timer
`},
	{"deterministic: interval timers, made", "pkg/sentry/kernel/thread_group.go",
		`ktime.NewSampledTimer(k.timekeeper.monotonicClock, &tg.itimerRealListener)`,
		`k.timekeeper.newRealTimer(&tg.itimerRealListener)`},
	insert("deterministic: blocked tasks", "pkg/sentry/kernel/task_block.go",
		`	case <-C:
		return nil
	default:
	}
`, `	if d := t.deterministic(); d != nil && !t.waitsForAgent {
		return d.block(t, C, timerChan)
	}
`),
	insert("deterministic: deadlines", "pkg/sentry/kernel/task_block.go",
		`func (t *Task) BlockWithDeadlineFrom(C <-chan struct{}, clock ktime.Clock, haveDeadline bool, deadline ktime.Time) error {
	if !haveDeadline {
		return t.block(C, nil)
	}
`, `	if t.deterministic() != nil {
		return t.blockUntil(C, clock, deadline)
	}
`),
	insert("deterministic: deadlines of sampled clocks", "pkg/sentry/kernel/task_block.go",
		`func (t *Task) blockWithDeadlineFromSampledClock(C <-chan struct{}, clock ktime.SampledClock, deadline ktime.Time) error {
`, `	if t.deterministic() != nil {
		return t.blockUntil(C, clock, deadline)
	}
`),
	insert("deterministic: a task's begin", "pkg/sentry/kernel/task_run.go",
		`	t.goid.Store(goid.Get())
`, `	t.awaitStart()
`),
	insert("deterministic: a task's rest", "pkg/sentry/kernel/task_run.go",
		`		//	- Task.Start won't start Task.run if t.runState is nil, so this
		//		ordering is safe.
`, `		t.rest()
`),
	insert("deterministic: a task's end", "pkg/sentry/kernel/task_run.go",
		`			// Keep argument alive because stack trace for dead variables may not be correct.
`, `			t.finish()
`),
	insert("deterministic: stopped tasks", "pkg/sentry/kernel/task_run.go",
		`	t.p.PrepareStop()
`, `	t.beginStop()
	defer t.endStop()
`),
	insert("deterministic: a task yields", "pkg/sentry/kernel/task_run.go",
		`	t.tg.yieldCount.Add(1)
`, `	t.yield()
`),
	insert("deterministic: new tasks", "pkg/sentry/kernel/task_start.go",
		`	// Use the task's TID in the root PID namespace to make it visible in stack dumps.
`, `	t.prepareStart()
`),
	insert("deterministic: system calls", "pkg/sentry/kernel/task_syscall.go",
		`func (t *Task) doSyscall() taskRunState {
`, `	t.enterSyscall()
`),
	insert("deterministic: no ticks", "pkg/sentry/kernel/task_sched.go",
		`		numIncTasks := min(runningTasks, len(incTasks))
`, `		if !k.haveTicks() {
			numIncTasks = 0
		}
`),
	{"deterministic: the door", "pkg/sentry/syscalls/linux/sys_prctl.go",
		`	switch option {
	case linux.PR_SET_PDEATHSIG:
`, `	switch option {
	case kernel.TurnstonePrctl:
		return 0, nil, beginDeterministic(t, args[1].Pointer())

	case kernel.TurnstoneClockPrctl:
		addr, err := t.ClockAddress()
		return uintptr(addr), nil, err

	case linux.PR_SET_PDEATHSIG:
`},
	// Where a process's arguments and environment are: gVisor knows only the executable.
	{"prctl: a map of the process's memory", "pkg/sentry/syscalls/linux/sys_prctl.go",
		`	case linux.PR_SET_MM:
`, `	case linux.PR_SET_MM:
		if args[1].Int() == linux.PR_SET_MM_MAP {
			return 0, nil, setMap(t, args[2].Pointer(), args[3].Uint64())
		}
`},
	insert("deterministic: pipes of the agent, the field", "pkg/sentry/kernel/pipe/pipe.go",
		`type Pipe struct {
`, `	// OfAgent says that the agent of a deterministic sandbox made the pipe.
	OfAgent bool `+"`state:\"nosave\"`"+`
	// written is the number of bytes written to the pipe.
	written int64 `+"`state:\"nosave\"`"+`

`),
	insert("deterministic: bytes written to a pipe", "pkg/sentry/kernel/pipe/pipe.go",
		`	done := int64(doneU64)
	p.size += done
`, `	p.written += done
`),
	{"deterministic: bytes written to a pipe, asked for", "pkg/sentry/kernel/pipe/pipe_util.go",
		`	switch int(args[1].Int()) {
	case linux.FIONREAD:
`, `	switch int(args[1].Int()) {
	case turnstoneWritten:
		return 0, p.copyWritten(ctx, io, args[2].Pointer())
	case linux.FIONREAD:
`},
	{"deterministic: writes to pipes", "pkg/sentry/kernel/pipe/pipe_util.go",
		`	if linuxerr.Equals(linuxerr.EPIPE, err) {
`, `	if t, ok := ctx.(writer); ok {
		t.WrotePipe(n, p.OfAgent && linuxerr.Equals(linuxerr.ErrWouldBlock, err))
	}
	if linuxerr.Equals(linuxerr.EPIPE, err) {
`},
	insert("deterministic: pipes of the agent, made", "pkg/sentry/syscalls/linux/sys_pipe.go",
		`	r, w, err := pipefs.NewConnectedPipeFDs(t, t.Kernel().PipeMount(), uint32(flags&linux.O_NONBLOCK))
`, `	markPipe(t, r, err)
`),
	insert("deterministic: /proc/meminfo", "pkg/sentry/fsimpl/proc/tasks_files.go",
		`	snapshot, totalUsage := usage.MemoryAccounting.Copy()
`, `	if kernel.KernelFromContext(ctx).IsDeterministic() {
		snapshot, totalUsage = usage.MemoryStats{}, 0
	}
`),
	{"deterministic: /proc/stat", "pkg/sentry/fsimpl/proc/tasks_files.go",
		`k.RunningTasks())`, `k.ShownRunning())`},
	insert("deterministic: sysinfo, memory", "pkg/sentry/syscalls/linux/sys_sysinfo.go",
		`	totalUsage := mfUsage + memStats.Mapped
`, `	if t.Kernel().IsDeterministic() {
		totalUsage = 0
	}
`),
	{"deterministic: the order of attributes", "pkg/sentry/vfs/memxattr/xattr.go",
		`	for n := range x.xattrs {
		// Hide`, `	for _, n := range slices.Sorted(maps.Keys(x.xattrs)) {
		// Hide`},
	{"deterministic: the order of attributes, import", "pkg/sentry/vfs/memxattr/xattr.go",
		`	"maps"
`, `	"maps"
	"slices"
`},
	{"deterministic: the order of children, waited for", "pkg/sentry/kernel/task_exit.go",
		`	for child := range parent.children {
`, `	for child := range parent.inOrder(parent.children) {
`},
	{"deterministic: the order of traced tasks", "pkg/sentry/kernel/task_exit.go",
		`	for tracee := range parent.ptraceTracees {
`, `	for tracee := range parent.inOrder(parent.ptraceTracees) {
`},
	{"deterministic: /proc/filesystems", "pkg/sentry/vfs/filesystem_type.go",
		`	for name, rft := range vfs.fsTypes {
		if !rft.opts.AllowUserList {
`, `	for _, name := range typeNames(vfs.fsTypes) {
		rft := vfs.fsTypes[name]
		if !rft.opts.AllowUserList {
`},
	{"deterministic: sysinfo, tasks", "pkg/sentry/syscalls/linux/sys_sysinfo.go",
		`t.Kernel().TaskSet().Root.NumTasks()`, `t.ShownTasks()`},

	// Work at the start that a sandbox does not need.
	insert("start: garbage is collected later", "runsc/cmd/sentry/sentrycmd/boot.go",
		`	timer.Reached("boot subcommand dispatched")
`, `	collectLater()
`),
	// Registering the trace points, one for each system call, takes 7 ms.
	{"start: no trace points without a trace", "runsc/boot/loader.go", `	seccheck.Initialize()
	args.StartupTimer.Reached("seccheck initialized")
`, `	if args.PodInitConfigFD >= 0 {
		seccheck.Initialize()
	}
	args.StartupTimer.Reached("seccheck initialized")
`},
	// 128 readers suit storage across a network. Each reader is a thread, and raises GOMAXPROCS
	// while the reader runs.
	{"start: few readers of a checkpoint's pages", "pkg/sentry/state/stateio/pagesfile.go",
		`	pagesFileFDDefaultMaxParallel = 128
`, `	pagesFileFDDefaultMaxParallel = 4
`},
	// Each counter is a separate object in a checkpoint. No packet of the sandbox's stack reaches
	// the host's network.
	{"start: fewer counters of fragments, IPv4", "pkg/tcpip/network/ipv4/ipv4.go",
		`	buckets = 2048
`, `	buckets = 64
`},
	{"start: fewer counters of fragments, IPv6", "pkg/tcpip/network/ipv6/ipv6.go",
		`	buckets = 2048
`, `	buckets = 64
`},
}

// insert returns an edit that adds text after a piece.
func insert(name, file, piece, text string) edit { return edit{name, file, piece, piece + text} }

// soonReady returns an edit that takes the second sample of the clocks soon after the first.
func soonReady(when, indent, after string) edit {
	lines := func(pause string) string {
		return indent + "t.timer.Reset(" + pause + ")\n" + indent + "t.update(true)\n" + after
	}
	const second = "sentrytime.ApproxUpdateInterval"
	return edit{"clocks: ready soon, " + when, "pkg/sentry/kernel/timekeeper.go", lines(second),
		lines(second + " / 20")}
}
