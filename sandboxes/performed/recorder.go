package performed

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/wire"
)

// checkEvery is the number of bytes between two checks of the free space, as in internal/diskspace,
// which builds on Linux only.
const checkEvery = 16 << 20

const (
	// maxPerformed bounds the commands of a turn: a document has no more steps.
	maxPerformed = 1000
	// maxOutput and maxOutputs bound the bytes of one output, and of all outputs, on the disk. Of
	// further output only the first leastOutput bytes are kept.
	maxOutput   = 256 << 20
	maxOutputs  = 2 << 30
	maxText     = 12 << 20 // bytes of the commands themselves
	leastOutput = 128 << 10
	// maxOwnEnv bounds the bytes of a command's variables, with its text.
	maxOwnEnv = 512 << 10
	// settleTime bounds the time in which the ends of commands arrive that have ended.
	settleTime = 10 * time.Second
	// maxOffset bounds the offsets that an agent may name.
	maxOffset = 1 << 50
	// connectTime bounds the time in which an agent answers.
	connectTime = time.Minute
	// maxPairs bounds the secrets that an agent may name.
	maxPairs = 4096
	// maxRecent bounds the IDs of commands that have ended; an agent lists fewer.
	maxRecent = 1024
)

// Options configure a Recorder.
type Options struct {
	Secrets []string     // NAME=VALUE, masked in everything
	Room    func() error // an error if the host's disk is nearly full; nil: no check
	Log     *slog.Logger
	// Held is called with the names of secrets that a command was given. It may be nil.
	Held func(names []string)
}

// A Machine is the machine of a sandbox.
type Machine interface {
	Connect() (wire.LinkStream, error)
	Done() <-chan struct{}
}

// A Recorder records the commands of a session's sandbox, from the agent's events. Its methods are
// safe for concurrent use.
type Recorder struct {
	dir string
	Options

	mu       sync.Mutex
	conn     *wire.Conn // nil: none
	changed  chan struct{}
	running  map[string]*recording
	done     []*Command // that have ended, for the next turn
	recent   []string   // IDs of commands that have ended
	next     int        // number
	unlisted int64
	since    time.Time
	kept     int64    // bytes in files
	text     int      // bytes of commands
	missing  string   // why commands may be missing
	pairs    []string // NAME=VALUE
	secrets  *secret.Set
}

// A recording is a command that runs.
type recording struct {
	*Command
	out [2]sink
}

// NewRecorder returns a recorder that continues with the commands that dir has: those of the sandbox
// of which this one is a fork.
func NewRecorder(dir string, o Options) (*Recorder, error) {
	r := &Recorder{dir: dir, Options: o, changed: make(chan struct{}),
		running: make(map[string]*recording), since: time.Now()}
	for _, kv := range o.Secrets {
		r.hide(kv)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	all, err := readCommands(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		r.next = p.number
		p.Stdout.Path, p.Stderr.Path = commandFile(dir, p.number, ".out"),
			commandFile(dir, p.number, ".err")
		if p.Ended {
			r.done = append(r.done, p)
			r.ended(p.ID)
			continue
		}
		r.running[p.ID] = r.open(p)
	}
	return r, nil
}

// hide masks NAME=VALUE from now on. A value that is too short to be masked is not kept either. r.mu
// is held, except at the start.
func (r *Recorder) hide(kv string) {
	if slices.Contains(r.pairs, kv) {
		return
	}
	name, value, _ := strings.Cut(kv, "=")
	if s, err := secret.New([]string{kv}); err != nil || s == nil {
		return
	}
	r.pairs = append(r.pairs, kv)
	lines := slices.DeleteFunc(strings.Split(value, "\n"),
		func(line string) bool { return len(line) < 8 })
	r.secrets = r.secrets.With(name, append(lines, value)...)
}

// wake tells those who wait for a change. r.mu is held.
func (r *Recorder) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Recorder) ended(id string) {
	if r.recent = append(r.recent, id); len(r.recent) > 2*maxRecent {
		r.recent = slices.Clone(r.recent[maxRecent:])
	}
}

// Follow records on a new connection of the machine.
func (r *Recorder) Follow(ctx context.Context, m Machine) error {
	s, err := m.Connect()
	if err != nil {
		return err
	}
	c := wire.NewConn(s, wire.Options{OnEvent: r.event})
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if err := c.SandboxRecord(ctx); err != nil {
		_ = c.Close()
		return err
	}
	list, err := c.ProcessList(ctx)
	if err != nil {
		_ = c.Close()
		return err
	}
	r.mu.Lock()
	r.conn = c
	var attach []wire.ProcessAttachParams
	gone := make(map[string]bool)
	for id := range r.running {
		gone[id] = true
	}
	for _, p := range list.Processes {
		if slices.Contains(r.recent, p.ProcessID) {
			continue
		}
		at := wire.ProcessAttachParams{ProcessID: p.ProcessID}
		if run := r.running[p.ProcessID]; run != nil {
			at.StdoutOffset, at.StderrOffset = run.Stdout.Size, run.Stderr.Size
		}
		delete(gone, p.ProcessID)
		attach = append(attach, at)
	}
	for id := range gone {
		r.finish(r.running[id], nil)
	}
	r.mu.Unlock()
	for i := range attach { // one that started on this connection is attached already
		if _, err := c.ProcessAttach(ctx, &attach[i]); turnstone.KindOf(err) ==
			turnstone.KindDead {
			return err
		}
	}
	go func() {
		select {
		case <-c.Done():
		case <-m.Done():
		}
		_ = c.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.conn == c {
			r.conn = nil
			r.wake()
		}
	}()
	return nil
}

// event takes an event of the agent, which may say anything.
func (r *Recorder) event(e wire.Event) {
	v, err := wire.DecodeEvent(e)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := v.(type) {
	case *wire.SandboxCommandStartedEvent:
		r.started(e)
	case *wire.SandboxSecretsAddedEvent:
		for _, kv := range e.Secrets {
			if len(r.pairs) < maxPairs {
				r.hide(kv)
			}
		}
	case *wire.ProcessOutputEvent:
		if run := r.running[e.ProcessID]; run != nil {
			run.write(r, e)
		}
	case *wire.ProcessLostEvent:
		if run := r.running[e.ProcessID]; run != nil && e.From >= 0 &&
			e.To > e.From && e.To < maxOffset {
			o := run.output(e.Stream)
			o.Lost += e.To - e.From
			o.Size = max(o.Size, e.To)
		}
	case *wire.SandboxCommandEndedEvent:
		if run := r.running[e.ProcessID]; run != nil {
			run.Input = []byte(r.secrets.Written().Mask(string(e.Input)))
			run.InputSize, r.text = e.InputSize, r.text+len(run.Input)
			r.finish(run, &e.Exit)
		}
	case *wire.ProcessExitedEvent: // of a process of which the agent has no record, or none any more
		if run := r.running[e.ProcessID]; run != nil {
			r.finish(run, &e.Exit)
		} else if !slices.Contains(r.recent, e.ProcessID) {
			// a turn has it that was kept before this sandbox was forked
			r.ended(e.ProcessID)
			r.wake()
		}
	}
}

func (r *Recorder) started(e *wire.SandboxCommandStartedEvent) {
	if r.running[e.ProcessID] != nil || slices.Contains(r.recent, e.ProcessID) {
		return
	}
	size := len(e.Script)
	for _, arg := range e.Argv {
		size += len(arg)
	}
	if len(r.running)+len(r.done) >= maxPerformed || r.text+size > maxText {
		r.unlisted++
		r.ended(e.ProcessID)
		return
	}
	began, err := time.Parse(time.RFC3339Nano, e.Started)
	if err != nil {
		began = time.Now()
	}
	r.next++
	p := &Command{ID: e.ProcessID, Started: began, Argv: e.Argv, Script: e.Script,
		Language: e.Language, Name: e.Name, Cwd: e.Cwd, User: e.User, Terminal: e.Terminal,
		Cut: e.Cut, number: r.next}
	for _, kv := range e.Env {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(e.Secrets, name) {
			r.hide(kv)
			p.Secrets = append(p.Secrets, name)
			continue
		}
		if size+len(kv) > maxOwnEnv {
			p.Cut = true
			continue
		}
		p.Env, size = append(p.Env, kv), size+len(kv)
	}
	r.text += size
	if len(p.Secrets) > 0 && r.Held != nil {
		r.Held(p.Secrets)
	}
	r.mask(p)
	p.Stdout.Path = commandFile(r.dir, p.number, ".out")
	p.Stderr.Path = commandFile(r.dir, p.number, ".err")
	r.running[p.ID] = r.open(p)
	r.store(p)
	r.wake()
}

// mask masks what p has of the client's words.
func (r *Recorder) mask(p *Command) {
	s := r.secrets.Written()
	if s == nil {
		return
	}
	for _, list := range [][]string{p.Argv, p.Env} {
		for i := range list {
			list[i] = s.Mask(list[i])
		}
	}
	for _, text := range []*string{&p.Script, &p.Name, &p.Cwd, &p.User} {
		*text = s.Mask(*text)
	}
}

func (r *Recorder) store(p *Command) {
	if err := p.write(r.dir); err != nil {
		r.Log.Warn("a command is not on the disk", "process", p.ID, "err", err)
	}
}

// open opens the outputs of p for writing.
func (r *Recorder) open(p *Command) *recording {
	run := &recording{Command: p}
	for i, o := range []*Output{&p.Stdout, &p.Stderr} {
		run.out[i] = sink{path: o.Path, words: r.secrets.Written()}
	}
	return run
}

// finish takes the end of a command; a nil exit is unknown. r.mu is held.
func (r *Recorder) finish(run *recording, exit *wire.ProcessExit) {
	p := run.Command
	delete(r.running, p.ID)
	r.ended(p.ID)
	for i := range run.out {
		run.out[i].close()
	}
	p.Exit, p.Ended, p.Took = exit, true, time.Since(p.Started)
	if exit != nil {
		p.Took = time.Duration(exit.Duration)
	}
	if p.Took = max(0, p.Took); p.Passed {
		p.remove(r.dir)
	} else {
		r.done = append(r.done, p)
		r.store(p)
	}
	r.wake()
}

func (run *recording) output(s wire.ProcessStream) *Output {
	if s == wire.ProcessStreamStderr {
		return &run.Stderr
	}
	return &run.Stdout
}

// write takes output of the command. r.mu is held.
func (run *recording) write(r *Recorder, e *wire.ProcessOutputEvent) {
	o, at := run.output(e.Stream), 0
	if e.Stream == wire.ProcessStreamStderr {
		at = 1
	}
	data := e.Data
	if skip := o.Size - e.Offset; skip > 0 { // it was received before
		data = data[min(skip, int64(len(data))):]
	}
	if len(data) == 0 {
		return
	}
	whole := o.Kept == o.Size && o.Lost == 0
	o.Size += int64(len(data))
	limit := int64(maxOutput)
	if r.kept > maxOutputs || run.Passed {
		limit = leastOutput
	}
	if !whole || o.Kept+int64(len(data)) > limit || !run.out[at].write(r, data) {
		return
	}
	o.Kept += int64(len(data))
	r.kept += int64(len(data))
}

// A sink is the file of an output.
type sink struct {
	path    string
	words   *secret.Set
	file    *os.File
	masked  io.WriteCloser
	checked int64
	full    bool
}

// write reports whether data was written: it is not once the disk is nearly full.
func (s *sink) write(r *Recorder, data []byte) bool {
	if s.full {
		return false
	}
	if s.file == nil || s.checked > checkEvery {
		s.checked = 0
		if r.Room != nil && r.Room() != nil {
			s.full = true
			return false
		}
	}
	if s.file == nil {
		f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			s.full = true
			return false
		}
		s.file, s.masked = f, s.words.Writer(f)
	}
	s.checked += int64(len(data))
	if _, err := s.masked.Write(data); err != nil {
		s.full = true
		return false
	}
	return true
}

func (s *sink) close() {
	if s.file != nil {
		_, _ = s.masked.Close(), s.file.Close()
		s.file = nil
	}
}

// Fail notes that commands were not recorded.
func (r *Recorder) Fail(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = "Commands may be missing: " + r.secrets.Written().Mask(why) + "."
	r.Log.Warn("the sandbox's commands are not recorded", "err", why)
}

// Settle waits until the starts of all commands have arrived, and the ends of those that have ended:
// a client learns of both first.
func (r *Recorder) Settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	r.mu.Lock()
	c := r.conn
	r.mu.Unlock()
	if c == nil {
		r.Fail("the sandbox's agent has ended the connection")
		return
	}
	list, err := c.ProcessList(ctx)
	if err != nil {
		r.Fail(err.Error())
		return
	}
	for _, p := range list.Processes {
		for {
			r.mu.Lock()
			arrived := slices.Contains(r.recent, p.ProcessID) || r.conn != c ||
				p.Exit == nil && r.running[p.ProcessID] != nil
			next := r.changed
			r.mu.Unlock()
			if arrived {
				break
			}
			select {
			case <-next:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Work returns what the next turn keeps.
func (r *Recorder) Work() (w Work) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.done {
		w.Commands = append(w.Commands, *p)
	}
	for _, run := range r.running {
		if !run.Passed {
			p := *run.Command
			p.Took = max(0, time.Since(p.Started))
			w.Commands = append(w.Commands, p)
		}
	}
	slices.SortStableFunc(w.Commands, func(a, b Command) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.number, b.number))
	})
	w.Unlisted, w.Since, w.Missing, w.Secrets = r.unlisted, r.since, r.missing,
		slices.Clone(r.pairs)
	return w
}

// Work is what was done in a sandbox since it began, or since its last turn.
type Work struct {
	Since time.Time
	// Commands are the commands in the order of their starts, and Unlisted is the number of those
	// after them that were not recorded.
	Commands []Command
	Unlisted int64
	Missing  string   // what else was not recorded, and why; empty: nothing
	Secrets  []string // NAME=VALUE: those of the sandbox and of its commands
}

// Committed forgets commands that a turn has now. Those that still run are in that turn, and not in
// the next one.
func (r *Recorder) Committed(all []Command) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = slices.DeleteFunc(r.done, func(p *Command) bool {
		in := slices.ContainsFunc(all, func(q Command) bool { return q.number == p.number })
		if in {
			p.remove(r.dir)
		}
		return in
	})
	for _, run := range r.running {
		run.Passed = true
		run.remove(r.dir)
		r.store(run.Command) // a fork must know it
	}
	r.unlisted, r.since, r.missing = 0, time.Now(), ""
	r.kept, r.text = 0, 0
}

// CopyTo copies the commands so far to a new folder.
func (r *Recorder) CopyTo(dir string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.running {
		r.store(run.Command) // with what it has written so far
	}
	return Copy(r.dir, dir)
}

// Close ends the recorder. It does nothing to nil.
func (r *Recorder) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	c := r.conn
	r.mu.Unlock()
	if c != nil {
		_ = c.Close()
		c.Wait()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.running {
		for i := range run.out {
			run.out[i].close()
		}
	}
}
