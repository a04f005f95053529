package trace

import (
	"time"

	"golang.org/x/sys/unix"
)

// Finish returns the step's report after its shell has ended with exit code exit, and releases the
// shared memory. Commands that still run in the background are Unfinished. Later calls return the
// same report.
func (r *Recorder) Finish(exit int) *Report {
	r.streams.Lock()
	defer r.streams.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report != nil {
		return r.report
	}
	r.report = r.collect(exit)
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
	_ = unix.Munmap(r.mem)
	r.mem = nil
	return r.report
}

func (r *Recorder) collect(exit int) *Report {
	rep := &Report{Commands: count(r.mem.load64(offCommands)),
		Dropped: count(r.mem.load64(offDropped))}
	rep.Untraced = r.mem.untraced(r.mem.load(offEnded) == 1)
	var why string
	if rep.State, why = r.mem.decodeState(); why != "" && rep.Untraced == "" {
		rep.Untraced = why
	}
	for i := range int(min(r.mem.load(offNextRecord), MaxRecords)) {
		if rec, ok := r.decode(i); ok {
			rep.Records = append(rep.Records, rec)
		}
	}
	for i := range int(min(r.mem.load(offNextSite), MaxSites)) {
		if s, ok := r.site(i); ok {
			raw := r.mem.site(i)
			// the words from the first observation, the counts from now
			if now, ok := decodeSite(i, &raw); ok {
				s.Count, s.Failures, s.Time = now.Count, now.Failures, now.Time
			}
			rep.Sites = append(rep.Sites, s)
		}
	}
	main := r.pid
	if main == 0 {
		main = int(int32(r.mem.load(offPid)))
	}
	var ts unix.Timespec
	var now time.Duration
	if begin := r.mem.load64(offStart); unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) == nil &&
		uint64(ts.Nano()) > begin {
		now = nanoseconds(uint64(ts.Nano()) - begin)
	}
	rep.close(main, exit, now)
	return rep
}

// close ends the records whose commands never returned because a signal killed their shell or their
// shell became another program. Records of the main shell, process main, end with it: with exit, at
// approximately the time end. Records of a subshell end when the command that forked the subshell
// ended.
func (rep *Report) close(main, exit int, end time.Duration) {
	forked := make(map[int][]int) // from a process to the ended records that forked it
	for i := range rep.Records {
		if r := &rep.Records[i]; r.Child != 0 && !r.Flags.Unfinished {
			forked[r.Child] = append(forked[r.Child], i)
		}
	}
	for i := range rep.Records {
		r := &rep.Records[i]
		if !r.Flags.Unfinished {
			continue
		}
		if r.Pid == main && !r.Flags.Async && !r.Flags.PipeOut {
			r.end(exit, end)
			continue
		}
		for _, j := range forked[r.Pid] { // process numbers are reused
			if f := &rep.Records[j]; f.Start <= r.Start && r.Start <= f.Start+f.Duration {
				r.end(f.Exit, f.Start+f.Duration)
				r.Flags.Exited, r.Flags.Signaled = f.Flags.Exited, f.Flags.Signaled
				break
			}
		}
	}
}

func (r *Record) end(exit int, at time.Duration) {
	r.Exit, r.Duration = exit&0xff, max(0, at-r.Start)
	r.Flags.Unfinished, r.Flags.Exited, r.Flags.Left = false, true, true
}
