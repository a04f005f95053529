package agent

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/files"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/wire"
)

const (
	maxScript = 16 << 20 // bytes
	// bytes of the session's environment; a larger environment could not be passed to a program
	maxEnv   = 1 << 20
	maxVars  = 1 << 16   // variables of the session, which are all in one message
	maxParse = 256 << 10 // bytes; a longer script's parts would use much of the sandbox's memory

	maxWaiting = 16               // steps that wait for the running step
	patience   = 30 * time.Second // time limit for a script's next part
)

// A shell is the session in which steps run: each step is a separate shell process, which starts
// from the exported environment and the working directory that the previous step left. It answers
// the domains Shell and State.
type shell struct {
	a    *Agent
	turn chan struct{} // taken by the running step
	wg   sync.WaitGroup

	parsing chan struct{} // taken while a script is parsed, because parsing needs memory

	patience time.Duration // see the constant

	queue   sync.Mutex
	waiting int // steps
	pending int // bytes of their scripts

	scripts []runFile // in the run directory, oldest first; used by the holder of the turn

	mu    sync.Mutex
	steps int
	base  []string // the initial environment of processes
	env   []string // the next step's initial environment
	cwd   string
}

func newShell(a *Agent) (*shell, error) {
	s := &shell{a: a, turn: make(chan struct{}, 1), parsing: make(chan struct{}, 1),
		patience: patience,
		base:     process.MergeEnv(a.opt.Env, nil), cwd: a.opt.Cwd}
	s.env = s.base
	dir := a.path(a.opt.RunDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return s, s.writePrelude()
}

// wait waits until the ends of all steps have been processed.
func (s *shell) wait() { s.wg.Wait() }

// addEnv adds to the initial environment of every process of the sandbox.
func (s *shell) addEnv(env []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = process.MergeEnv(s.base, env)
	s.env = process.MergeEnv(s.env, env)
}

func (s *shell) baseEnv() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base
}

// enqueue counts a step that waits for its turn, with a script of n bytes.
func (s *shell) enqueue(n int) error {
	s.queue.Lock()
	defer s.queue.Unlock()
	if s.waiting == maxWaiting || s.waiting > 0 && s.pending+n > maxScript {
		return turnstone.NewError(wire.MethodShellExecute, turnstone.KindExhausted,
			"steps that wait",
			nil).WithHint("steps run one after another: wait for the end of those before")
	}
	s.waiting++
	s.pending += n
	return nil
}

func (s *shell) dequeue(n int) {
	s.queue.Lock()
	defer s.queue.Unlock()
	s.waiting--
	s.pending -= n
}

// take waits for the previous steps.
func (s *shell) take(ctx context.Context, op turnstone.Op) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return turnstone.NewError(op, turnstone.KindCanceled, "shell session", context.Cause(ctx))
	}
}

func (s *shell) give() { <-s.turn }

// Execute implements Shell.execute. It answers when the step runs.
func (s *shell) Execute(ctx context.Context, c *wire.Conn,
	p *wire.ShellExecuteParams) (*wire.ShellExecuteResult, error) {
	const op = wire.MethodShellExecute
	if p.Language == "" {
		p.Language = wire.ShellExecuteLanguageBash
	}
	if p.Language != wire.ShellExecuteLanguageBash && p.Language != wire.ShellExecuteLanguageSh {
		return nil, Invalid(op, string(p.Language), "the languages are bash and sh")
	}
	if err := s.enqueue(len(p.Script)); err != nil {
		return nil, err
	}
	s.a.activity.begin()
	err := s.take(ctx, op)
	s.dequeue(len(p.Script))
	if err != nil {
		s.a.activity.end()
		return nil, err
	}
	_, p.User = s.a.defaults.of("", p.User, "")
	var failed error
	var st *step
	var spec process.Spec
	script, err := s.readScript(c, p)
	if err == nil {
		st, spec, err = s.prepare(p, script)
	}
	if err == nil {
		cl := s.a.client(c)
		attach := cl.attachAtStart(ctx, st, [2]wanted{
			{stream: p.StdoutStream, window: p.Window}, {stream: p.StderrStream, window: p.Window}},
			0, &failed)
		spec.Before = func(pr *process.Process) {
			st.rec.Started(s.a.traced(pr))
			attach(pr)
		}
		s.a.records.Around(&wire.SandboxCommandStartedEvent{Script: string(script),
			Language: string(p.Language), Name: p.Name, Env: p.Env, Secrets: p.Secrets,
			User: p.User}, &spec, s.a.attachRecorder)
		if _, err = s.a.procs.Start(spec); err != nil {
			st.rec.Finish(-1)
		} else if p.KillOnDisconnect {
			cl.killWith(st.p)
		}
	}
	if err != nil {
		if st != nil {
			s.tidy(st)
		}
		s.give()
		s.a.activity.end()
		return nil, err
	}
	s.wg.Go(st.finish)
	if err := unattached(c, st.p, failed); err != nil {
		return nil, err
	}
	return &wire.ShellExecuteResult{ProcessID: st.p.ID, Path: st.path}, nil
}

// traced returns the number of a step's shell from the point of view of its tracer; 0: the number
// that the tracer reports.
func (a *Agent) traced(p *process.Process) int {
	if a.opt.Space != nil {
		// a lookup costs time, and a process that could forge the number can also forge the records
		return 0
	}
	return p.PID
}

// readScript returns a step's text. It reads the text only in the step's turn, so that the scripts
// of waiting steps stay with their clients.
func (s *shell) readScript(c *wire.Conn, p *wire.ShellExecuteParams) ([]byte, error) {
	const op = wire.MethodShellExecute
	if p.ScriptStream == 0 {
		return []byte(p.Script), nil
	}
	if p.Script != "" {
		return nil, Invalid(op, "scriptStream",
			"the script comes as text or as a stream, not as both")
	}
	r, err := c.Receiver(p.ScriptStream)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := s.readStream(r)
	if err == nil && len(b) > maxScript {
		err = turnstone.Errorf(op, turnstone.KindExhausted, "script", "it is longer than 16 MiB").
			WithHint("put data into a file and let the script read it")
	}
	return b, err
}

// prepare sets up a step: the session, its files, and the start of its shell. The caller holds the
// session.
func (s *shell) prepare(p *wire.ShellExecuteParams, script []byte) (*step, process.Spec, error) {
	const op = wire.MethodShellExecute
	var spec process.Spec
	s.mu.Lock()
	env, cwd := ofUser(p.User, process.MergeEnv(s.env, p.Env)), s.cwd
	if p.Cwd != "" {
		cwd = p.Cwd
	}
	if err := checkSession(op, cwd, env); err != nil {
		s.mu.Unlock()
		return nil, spec, err
	}
	s.env, s.cwd = env, cwd
	s.steps++
	number := s.steps
	s.mu.Unlock()
	env = process.MergeEnv(env, []string{"PWD=" + cwd}) // which a shell believes if it is its directory

	dir, err := s.needRun()
	if err != nil {
		return nil, spec, err
	}
	defer dir.Close()
	name := strconv.Itoa(number) + "-" + safeName(p.Name) + ".sh"
	if err := dir.write(name, script); err != nil {
		return nil, spec, err
	}
	st := &step{s: s, language: string(p.Language), path: filepath.Join(s.a.opt.RunDir, name),
		file: runFile{name, len(script)},
		rec:  untraced("not asked for"), sent: make(map[int]bool), done: make(chan struct{})}
	if (p.Spans == nil || *p.Spans) && len(script) <= maxParse {
		st.spans, st.script = true, script
	}
	if p.Trace == nil || *p.Trace {
		st.rec = s.recorder(st.language, env)
	}
	spec = process.Spec{ID: p.ProcessID, Env: env, Cwd: cwd, User: p.User, Watcher: st.rec}
	if st.rec.captures() {
		spec.Argv = []string{bashPath, st.path}
		spec.Env, spec.Files = st.rec.Env(), st.rec.Files()
		return st, spec, nil
	}
	if err := dir.remove(stateFile); err != nil {
		return nil, spec, err
	}
	if p.User != "" {
		if err := dir.writeForAll(stateFile); err != nil {
			return nil, spec, err
		}
	}
	if st.language == "bash" {
		st.prelude, err = s.bash(dir, &spec, st.path, string(script), number)
		return st, spec, err
	}
	s.sh(&spec, st.path, string(script))
	return st, spec, nil
}

// checkSession rejects a session with which no shell could be started.
func checkSession(op turnstone.Op, cwd string, env []string) error {
	total := 0
	for _, kv := range env {
		total += len(kv) + 1
	}
	switch {
	case !filepath.IsAbs(cwd) || len(cwd) > files.MaxPath || strings.IndexByte(cwd, 0) >= 0:
		return Invalid(op, cwd, "the working directory is not an absolute path")
	case total > maxEnv || len(env) > maxVars:
		return turnstone.Errorf(op, turnstone.KindExhausted, "environment",
			"it is larger than 1 MiB, or has too many variables").
			WithHint("keep data in files, because programs cannot start with such an environment")
	}
	return nil
}

// Parse implements Shell.parse.
func (s *shell) Parse(ctx context.Context, _ *wire.Conn,
	p *wire.ShellParseParams) (*wire.ShellParseResult, error) {
	language := "bash"
	switch p.Language {
	case "", wire.ShellParseLanguageBash:
	case wire.ShellParseLanguageSh:
		language = "sh"
	default:
		return nil, Invalid(wire.MethodShellParse, string(p.Language),
			"the languages are bash and sh")
	}
	if len(p.Script) > maxParse {
		return nil, turnstone.Errorf(wire.MethodShellParse, turnstone.KindExhausted, "script",
			"it is longer than 256 KiB").
			WithHint("parse it outside of the sandbox; Shell.execute takes longer ones")
	}
	parsed, err := s.parse(ctx, []byte(p.Script), language)
	if err != nil {
		return nil, err
	}
	return wireScript(parsed), nil
}

// parse parses one script at a time, because the result is many times as large as the script.
func (s *shell) parse(ctx context.Context, script []byte, language string) (*syntax.Script, error) {
	select {
	case s.parsing <- struct{}{}:
	case <-ctx.Done():
		return nil, turnstone.NewError(wire.MethodShellParse, turnstone.KindCanceled, "script",
			context.Cause(ctx))
	}
	defer func() { <-s.parsing }()
	return syntax.ParseAs(script, language), nil
}

// GetSession implements State.getSession.
func (s *shell) GetSession(context.Context, *wire.Conn) (*wire.StateGetSessionResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &wire.StateGetSessionResult{Cwd: s.cwd, Env: s.env}, nil
}

// SetSession implements State.setSession. It waits for a running step.
func (s *shell) SetSession(ctx context.Context, _ *wire.Conn, p *wire.StateSetSessionParams) error {
	const op = wire.MethodStateSetSession
	if err := s.take(ctx, op); err != nil {
		return err
	}
	defer s.give()
	s.mu.Lock()
	defer s.mu.Unlock()
	cwd, env := s.cwd, s.env
	if p.Cwd != "" {
		cwd = p.Cwd
	}
	if p.Env != nil {
		env = process.MergeEnv(nil, p.Env)
	}
	if err := checkSession(op, cwd, env); err != nil {
		return err
	}
	s.cwd, s.env = cwd, env
	return nil
}

// safeName keeps the characters of a step's name that are allowed in a file name.
func safeName(name string) string {
	if name == "" {
		name = "step"
	}
	b := []byte(name)
	if len(b) > 64 {
		b = b[:64]
	}
	for i, c := range b {
		if strings.IndexByte(process.IDChars, c) < 0 {
			b[i] = '_'
		}
	}
	return string(b)
}

func runDirError(err error) error {
	return turnstone.NewError(wire.MethodShellExecute, turnstone.KindUnavailable,
		"the agent's folder",
		files.RootCause(err)).
		WithHint("neither remove nor fill the agent's folder below /run in a step")
}
