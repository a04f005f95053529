package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/guest/exports"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/wire"
)

// A step is a running or ended step.
type step struct {
	s        *shell
	p        *process.Process
	rec      recorder
	language string
	path     string
	file     runFile
	prelude  string // the file in the run directory for this step only, or ""
	spans    bool
	script   []byte // only with spans

	// Records that were sent: used by live, then by tell, then by another attachment of the same
	// connection.
	sent   map[int]bool   // by ID
	all    []trace.Record // the drained records
	parsed *syntax.Script // nil until it is needed

	done   chan struct{} // closed when the session has the state that the step left
	report *trace.Report // valid after done
	lost   bool          // the shell left no state
	cwd    string
	env    []string
}

// finish transfers the state that the step's shell left to the session, and lets the next step
// begin.
func (st *step) finish() {
	defer close(st.done)
	<-st.p.Exited()
	st.report = st.rec.Finish(st.p.Exit().Code)
	s := st.s
	c, err := st.capture()
	s.mu.Lock()
	if st.lost = err != nil; !st.lost {
		// Values of the user's account are not inherited: the next step may have another user.
		own := func(kv string) bool { return slices.Contains(st.p.AccountEnv, kv) }
		s.cwd, s.env = c.Cwd, append(slices.DeleteFunc(c.Vars, own), c.Funs...)
	}
	st.cwd, st.env = s.cwd, s.env
	s.mu.Unlock()
	s.tidy(st)
	s.give()
	s.a.activity.end()
}

// capture returns the state that the step's shell left for the next step.
func (st *step) capture() (exports.State, error) {
	if st.rec.captures() {
		return st.s.a.fromState(st.report.State)
	}
	dir, err := st.s.openRun()
	if err != nil {
		return exports.State{}, err
	}
	defer dir.Close()
	data, err := dir.readCapture()
	if err != nil {
		return exports.State{}, err
	}
	if st.language == "bash" {
		return exports.ParseBash(data)
	}
	c, err := exports.ParseSh(data)
	if err != nil {
		return c, err
	}
	// sh drops names that it cannot represent, so the functions stay unchanged.
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for _, kv := range st.s.env {
		if strings.HasPrefix(kv, "BASH_FUNC_") {
			c.Funs = append(c.Funs, kv)
		}
	}
	return c, nil
}

// cheapParse is the maximum size of a script whose parts are kept and not parsed again.
const cheapParse = 16 << 10 // bytes

// drainEvery is the interval between sends of records while a step runs.
const drainEvery = 50 * time.Millisecond

// live sends records while the step runs.
func (st *step) live(ctx context.Context, c *wire.Conn) {
	if !st.rec.captures() {
		return
	}
	pause := drainEvery
	timer := time.NewTimer(pause)
	defer timer.Stop()
	defer st.forgetParsed()
	for {
		select {
		case <-timer.C:
		case <-st.done:
			return
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if batch := st.rec.Drain(); len(batch) > 0 {
			fresh := batch
			if st.spans {
				// Each record is resolved against all records that have ended so far.
				st.all = append(st.all, batch...)
				slices.SortFunc(st.all, func(a, b trace.Record) int { return a.ID - b.ID })
				rep := &trace.Report{Records: slices.Clone(st.all)}
				if st.parse(ctx) != nil {
					return
				}
				trace.Resolve(st.parsed, rep)
				fresh = slices.DeleteFunc(rep.Records,
					func(r trace.Record) bool { return st.sent[r.ID] })
			}
			if st.send(ctx, c, fresh) != nil {
				return
			}
		}
		// Many records use only a fraction of the time.
		pause = max(drainEvery, 30*time.Since(began))
		timer.Reset(pause)
	}
}

// tell sends the remaining records and the step's end.
func (st *step) tell(ctx context.Context, c *wire.Conn) {
	select {
	case <-st.done:
	case <-ctx.Done():
		return
	}
	rep := st.report
	if st.spans && len(rep.Sites) > 0 {
		if st.parse(ctx) != nil {
			return
		}
		trace.Resolve(st.parsed, rep)
	}
	var rest []trace.Record
	for i := range rep.Records {
		if !st.sent[rep.Records[i].ID] {
			rest = append(rest, rep.Records[i])
		}
	}
	if st.send(ctx, c, rest) != nil {
		return
	}
	_, stdout := st.p.Out[1].Range()
	_, stderr := st.p.Out[2].Range()
	e := &wire.ShellFinishedEvent{ProcessID: st.p.ID, Exit: *wireExit(st.p.Exit()),
		StateLost: st.lost, Cwd: st.cwd, Env: st.env,
		Count: rep.Commands, Dropped: rep.Dropped, Untraced: rep.Untraced, StdoutEnd: stdout,
		StderrEnd: stderr}
	for i := range rep.Sites {
		e.Sites = append(e.Sites, rep.Sites[i].ToWire())
	}
	_ = c.EmitShellFinished(ctx, e)
}

// maxBatch bounds the records of one event.
const maxBatch = 256

// send sends records, in the order in which they ended.
func (st *step) send(ctx context.Context, c *wire.Conn, records []trace.Record) error {
	sortByEnd(records)
	for len(records) > 0 {
		n := min(len(records), maxBatch)
		e := &wire.ShellCommandsEvent{ProcessID: st.p.ID, Records: make([]wire.ShellRecord, n)}
		for i := range n {
			r := &records[i]
			e.Records[i] = r.ToWire(st.parsed)
			st.sent[r.ID] = true
		}
		if err := c.EmitShellCommands(ctx, e); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// parse parses the script once, and only when a record needs it, because bash already runs.
func (st *step) parse(ctx context.Context) (err error) {
	if st.parsed == nil {
		st.parsed, err = st.s.parse(ctx, st.script, st.language)
	}
	return err
}

// forgetParsed releases a large script's parts: the client may take long to receive the events
// before the step's end.
func (st *step) forgetParsed() {
	if len(st.script) > cheapParse {
		st.parsed = nil
	}
}
