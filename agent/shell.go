package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/agent/process"
	"turnstone.dev/turnstone/syntax"
	"turnstone.dev/turnstone/wire"
)

const (
	maxScript = 16 << 20 // bytes
	maxEnv    = 1 << 20  // bytes of the session's environment; more could not be passed to a program
	maxPath   = 4095     // bytes; PATH_MAX without its NUL
	bigScript = 1 << 20  // bytes; a larger script file does not stay

	maxWaiting = 16 // steps that wait for the one that runs, each with its script
)

// A shell is the session that steps run in: each is a shell process of its own,
// which starts from the exported environment and the working directory that the
// step before it left. It answers the domains Shell and State.
type shell struct {
	a    *Agent
	turn chan struct{} // taken by the step that runs
	wg   sync.WaitGroup

	waiting atomic.Int64

	mu    sync.Mutex
	steps int
	base  []string // what processes start from
	env   []string // what the next step starts from
	cwd   string
}

func newShell(a *Agent) (*shell, error) {
	s := &shell{a: a, turn: make(chan struct{}, 1), base: process.MergeEnv(a.opt.Env, nil), cwd: a.opt.Cwd}
	s.env = s.base
	dir := a.path(a.opt.RunDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return s, s.writePrelude()
}

// wait waits until the ends of all steps have been worked off.
func (s *shell) wait() { s.wg.Wait() }

// addEnv adds to what every process of the sandbox starts from.
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

// take waits for the steps before.
func (s *shell) take(ctx context.Context, op string) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &turnstone.Error{Op: op, Kind: turnstone.Canceled, Subject: "shell session", Err: context.Cause(ctx)}
	}
}

func (s *shell) give() { <-s.turn }

// Execute is Shell.execute. It answers when the step runs.
func (s *shell) Execute(ctx context.Context, c *wire.Conn, p *wire.ShellExecuteParams) (*wire.ShellExecuteResult, error) {
	const op = wire.MethodShellExecute
	if p.Language == "" {
		p.Language = wire.ShellExecuteLanguageBash
	}
	if p.Language != wire.ShellExecuteLanguageBash && p.Language != wire.ShellExecuteLanguageSh {
		return nil, invalid(op, string(p.Language), "the languages are bash and sh")
	}
	if s.waiting.Add(1) > maxWaiting {
		s.waiting.Add(-1)
		return nil, &turnstone.Error{Op: op, Kind: turnstone.Exhausted, Subject: "steps that wait",
			Hint: "steps run one after another: wait for the end of those before"}
	}
	script, err := readScript(c, p)
	if err == nil {
		err = s.take(ctx, op)
	}
	s.waiting.Add(-1)
	if err != nil {
		return nil, err
	}
	var failed error
	st, spec, err := s.prepare(p, script)
	if err == nil {
		cl := s.a.client(c)
		attach := cl.attachAtStart(ctx, st, [2]wanted{
			{stream: p.StdoutStream, window: p.Window}, {stream: p.StderrStream, window: p.Window}}, &failed)
		spec.Before = func(pr *process.Process) {
			st.rec.started(pr.PID)
			attach(pr)
		}
		if _, err = s.a.procs.Start(spec); err != nil {
			st.rec.finish(-1)
		} else if p.KillOnDisconnect {
			cl.killWith(st.p)
		}
	}
	if err != nil {
		s.give()
		return nil, err
	}
	s.wg.Go(st.finish)
	if err := unattached(c, st.p, failed); err != nil {
		return nil, err
	}
	return &wire.ShellExecuteResult{ProcessID: st.p.ID, Path: st.path}, nil
}

// readScript returns a step's text.
func readScript(c *wire.Conn, p *wire.ShellExecuteParams) ([]byte, error) {
	const op = wire.MethodShellExecute
	if p.ScriptStream == 0 {
		return []byte(p.Script), nil
	}
	if p.Script != "" {
		return nil, invalid(op, "scriptStream", "the script comes as text or as a stream, not as both")
	}
	r, err := c.Receiver(p.ScriptStream)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(io.LimitReader(r, maxScript+1))
	if err == nil && len(b) > maxScript {
		err = &turnstone.Error{Op: op, Kind: turnstone.Exhausted, Subject: "script", Err: errors.New("it is longer than 16 MiB"),
			Hint: "put data into a file and let the script read it"}
	}
	return b, err
}

// prepare sets up a step: the session, its files, how its shell is started. The
// session is the caller's.
func (s *shell) prepare(p *wire.ShellExecuteParams, script []byte) (*step, process.Spec, error) {
	const op = wire.MethodShellExecute
	var spec process.Spec
	s.mu.Lock()
	env, cwd := process.MergeEnv(s.env, p.Env), s.cwd
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

	dir := s.a.path(s.a.opt.RunDir)
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil && !os.IsNotExist(err) {
		return nil, spec, runDirError(err)
	}
	name := strconv.Itoa(number) + "-" + safeName(p.Name) + ".sh"
	if err := os.WriteFile(filepath.Join(dir, name), script, 0o644); err != nil {
		return nil, spec, runDirError(err)
	}
	st := &step{s: s, language: string(p.Language), script: script, path: filepath.Join(s.a.opt.RunDir, name),
		spans: p.Spans == nil || *p.Spans, rec: untraced("not asked for"),
		sent: make(map[int]bool), done: make(chan struct{})}
	if p.Trace == nil || *p.Trace {
		st.rec = s.recorder(st.language, env)
	}
	spec = process.Spec{ID: p.ProcessID, Env: env, Cwd: cwd, Watcher: st.rec}
	switch {
	case st.rec.captures():
		spec.Argv = []string{bashPath, st.path}
		spec.Env, spec.Files = st.rec.env(), st.rec.files()
		return st, spec, nil
	case st.language == "bash":
		return st, spec, s.bash(&spec, st.path, string(script), number)
	}
	s.sh(&spec, st.path, string(script))
	return st, spec, nil
}

// checkSession refuses what no shell could be started with.
func checkSession(op, cwd string, env []string) error {
	total := 0
	for _, kv := range env {
		total += len(kv) + 1
	}
	switch {
	case !filepath.IsAbs(cwd) || len(cwd) > maxPath || strings.IndexByte(cwd, 0) >= 0:
		return invalid(op, cwd, "the working directory is not an absolute path")
	case total > maxEnv:
		return &turnstone.Error{Op: op, Kind: turnstone.Exhausted, Subject: "environment", Err: errors.New("it is larger than 1 MiB"),
			Hint: "programs cannot be started with it; keep data in files"}
	}
	return nil
}

// Parse is Shell.parse.
func (s *shell) Parse(_ context.Context, _ *wire.Conn, p *wire.ShellParseParams) (*wire.ShellParseResult, error) {
	language := "bash"
	switch p.Language {
	case "", wire.ShellParseLanguageBash:
	case wire.ShellParseLanguageSh:
		language = "sh"
	default:
		return nil, invalid(wire.MethodShellParse, string(p.Language), "the languages are bash and sh")
	}
	return wireScript(syntax.ParseAs([]byte(p.Script), language)), nil
}

// GetSession is State.getSession.
func (s *shell) GetSession(context.Context, *wire.Conn) (*wire.StateGetSessionResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &wire.StateGetSessionResult{Cwd: s.cwd, Env: s.env}, nil
}

// SetSession is State.setSession. It waits for a step that runs.
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

// safeName keeps of a step's name what may stand in a file name.
func safeName(name string) string {
	b := []byte(name)
	if len(b) > 64 {
		b = b[:64]
	}
	for i, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			b[i] = '_'
		}
	}
	return string(b)
}

func runDirError(err error) error {
	return &turnstone.Error{Op: wire.MethodShellExecute, Kind: turnstone.Unavailable, Subject: "the agent's folder", Err: rootCause(err),
		Hint: "a step removed or filled what the agent keeps below /run"}
}
