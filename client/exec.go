package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// MaxOutput bounds each output in a Result, in bytes. Stdout and Stderr get all of it.
const MaxOutput = 64 << 20

// An ExecOption changes how a command runs.
type ExecOption func(*execution)

// An execution is a command and where its outputs go.
type execution struct {
	cmd     sandboxes.Command
	timeout time.Duration
}

// Env adds variables.
func Env(all map[string]string) ExecOption {
	return func(e *execution) { e.cmd.Env = append(e.cmd.Env, pairs(all)...) }
}

// Secrets adds variables whose values are masked in what a session keeps of the command.
func Secrets(all map[string]string) ExecOption {
	return func(e *execution) { e.cmd.Secrets = append(e.cmd.Secrets, pairs(all)...) }
}

// Cwd sets the directory; default: the template's.
func Cwd(dir string) ExecOption { return func(e *execution) { e.cmd.Cwd = dir } }

// User sets the user, USER or USER:GROUP; default: the template's.
func User(user string) ExecOption { return func(e *execution) { e.cmd.User = user } }

// Stdin is the command's input; default: none. Reading may outlive the call by one Read.
func Stdin(r io.Reader) ExecOption { return func(e *execution) { e.cmd.Stdin = r } }

// Stdout gets the output while the command runs, in place of Result.Stdout.
func Stdout(w io.Writer) ExecOption { return func(e *execution) { e.cmd.Stdout = w } }

// Stderr gets the errors while the command runs, in place of Result.Stderr.
func Stderr(w io.Writer) ExecOption { return func(e *execution) { e.cmd.Stderr = w } }

// Timeout kills the command after a time. The error is of kind Timeout, and the result has what the
// command wrote.
func Timeout(d time.Duration) ExecOption { return func(e *execution) { e.timeout = d } }

// Terminal gives the command a terminal of this size. Its output is all in Stdout.
func Terminal(columns, rows int) ExecOption {
	return func(e *execution) {
		e.cmd.Terminal = &wire.ProcessTerminal{Columns: int64(columns), Rows: int64(rows)}
	}
}

// A Result is how a command ended.
type Result struct {
	ExitCode       int    // 128 plus the signal's number if a signal ended it
	Stdout, Stderr string // at most MaxOutput each
	Truncated      bool   // an output was longer
	Duration       time.Duration
	Signal         string // that ended it, such as SIGKILL
	OOMKilled      bool   // a memory limit killed one of its processes
	DiskFull       bool

	Language string    // of the program: "bash", "python", …
	Commands []Command // of Shell: those that ran; of a shell's -c: those of its script
	Cwd      string    // of Shell: the directory afterwards
}

// A Command is one command of a script.
type Command struct {
	Text     string
	Language string
	Kind     string         // simple, pipeline, if, …
	Span     wire.ShellSpan // in the script, in bytes from 0; zero: it is not in the script
	ExitCode *int           // nil: not known
	Start    time.Duration  // since the beginning of the script
	Duration time.Duration
}

// An output keeps the beginning of an output.
type output struct {
	b   bytes.Buffer
	cut bool
}

func (o *output) Write(p []byte) (int, error) {
	room := min(len(p), MaxOutput-o.b.Len())
	o.b.Write(p[:room])
	o.cut = o.cut || room < len(p)
	return len(p), nil
}

// Exec runs a program and waits for its end. That it fails is no error: see Result.ExitCode. When ctx
// ends, the command is killed. A lost connection is made again, and no output is lost.
func (s *Sandbox) Exec(ctx context.Context, argv []string, options ...ExecOption) (*Result, error) {
	e, err := newExecution(argv, options)
	if err != nil {
		return nil, err
	}
	return s.run(ctx, e)
}

func newExecution(argv []string, options []ExecOption) (*execution, error) {
	if len(argv) == 0 || argv[0] == "" {
		return nil, turnstone.Errorf("sandbox.exec", turnstone.KindInvalid, "the command", "is empty")
	}
	e := &execution{cmd: sandboxes.Command{Argv: argv}}
	for _, o := range options {
		o(e)
	}
	return e, nil
}

// bound returns a context that ends with the time of a command.
func (e *execution) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if e.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, e.timeout)
}

// keep sends outputs that nobody reads to the result.
func (e *execution) keep() (out, errs *output) {
	out, errs = new(output), new(output)
	if e.cmd.Stdout == nil {
		e.cmd.Stdout = out
	}
	if e.cmd.Stderr == nil {
		e.cmd.Stderr = errs
	}
	return out, errs
}

func (s *Sandbox) run(ctx context.Context, e *execution) (*Result, error) {
	ctx, cancel := e.bound(ctx)
	defer cancel()
	out, errs := e.keep()
	commands := make(chan []Command, 1)
	if script, is := scriptOf(e.cmd.Argv); is { // while it runs
		go func() { commands <- s.commands(ctx, script) }()
	} else {
		commands <- nil
	}
	exit, err := s.access.Exec(ctx, s.id, e.cmd)
	err = ended(ctx, err, e.cmd.Argv[0])
	r := resultOf(exit, out, errs)
	if err != nil {
		cancel() // nobody needs the commands
	}
	r.Commands, r.Language = <-commands, languageOf(e.cmd.Argv)
	return r, err
}

// ended returns the error of a command whose context has ended.
func ended(ctx context.Context, err error, subject string) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	kind := turnstone.KindCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError("sandbox.exec", kind, subject, context.Cause(ctx))
}

func resultOf(exit wire.ProcessExit, out, errs *output) *Result {
	return &Result{ExitCode: int(exit.ExitCode), Stdout: out.b.String(), Stderr: errs.b.String(),
		Truncated: out.cut || errs.cut, Duration: time.Duration(exit.Duration), Signal: exit.Signal,
		OOMKilled: exit.OOMKilled, DiskFull: exit.DiskFull}
}

// scriptOf returns the script of a shell's -c.
func scriptOf(argv []string) (script string, is bool) {
	if len(argv) < 3 || argv[1] != "-c" {
		return "", false
	}
	name := path.Base(argv[0])
	return argv[2], name == "bash" || name == "sh"
}

// commands returns the commands of a script, which the sandbox's parser finds; none if it cannot.
func (s *Sandbox) commands(ctx context.Context, script string) (all []Command) {
	_ = s.access.Use(ctx, s.id, func(c *wire.Client) error {
		p, err := c.ShellParse(ctx, &wire.ShellParseParams{Script: script})
		if err != nil {
			return err
		}
		for _, one := range p.Commands {
			all = append(all, Command{Text: within(script, one.Span), Language: one.Language,
				Kind: string(one.Kind), Span: one.Span})
		}
		return nil
	})
	return all
}

// within returns the part of a script that an untrusted span names.
func within(script string, span wire.ShellSpan) string {
	if span.Start < 0 || span.End < span.Start || span.End > int64(len(script)) {
		return ""
	}
	return script[span.Start:span.End]
}

// languageOf returns the language of a program, as the parser of scripts names it.
func languageOf(argv []string) string {
	name := strings.TrimRight(path.Base(argv[0]), "0123456789.")
	switch name {
	case "python", "pypy":
		return "python"
	case "node", "nodejs", "deno":
		return "javascript"
	case "ruby", "perl", "jq", "awk", "sed":
		return name
	case "gawk", "mawk", "nawk":
		return "awk"
	case "psql", "sqlite", "mysql", "mariadb":
		return "sql"
	}
	return "bash"
}

// Shell runs a script in the sandbox's shell session: what it exports and its directory stay for the
// next script. The result has each command that ran. Of the options, Env, Cwd, User, Secrets, Stdout,
// Stderr and Timeout count. The session is lost with the connection: an error of kind Dead means that
// the outcome is not known.
func (s *Sandbox) Shell(ctx context.Context, script string, options ...ExecOption) (*Result, error) {
	e, err := newExecution([]string{"bash"}, options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	out, errs := e.keep()
	c, err := s.access.Client(ctx, s.id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close(); c.Wait() }()
	trace := true
	var records []wire.ShellRecord // the calls have ended when Execute returns
	p := wire.ShellExecuteParams{Env: append(e.cmd.Env, e.cmd.Secrets...), Cwd: e.cmd.Cwd,
		User: e.cmd.User, Trace: &trace, KillOnDisconnect: true}
	for _, kv := range e.cmd.Secrets {
		name, _, _ := strings.Cut(kv, "=")
		p.Secrets = append(p.Secrets, name)
	}
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(killTime, func() { _ = c.Close() })
	})()
	end, err := c.Execute(ctx, p, script, wire.Stdio{Out: e.cmd.Stdout, Err: e.cmd.Stderr},
		func(some []wire.ShellRecord) { records = append(records, some...) })
	err = ended(ctx, err, "the script")
	r := resultOf(end.Exit, out, errs)
	r.Cwd, r.Language = end.Cwd, "bash"
	for _, one := range records {
		r.Commands = append(r.Commands, ran(one))
	}
	return r, err
}

// killTime bounds how long a sandbox may take to end a script whose context has ended.
const killTime = 5 * time.Second

func ran(r wire.ShellRecord) Command {
	c := Command{Text: r.Text, Language: r.Language, Kind: r.Kind, Start: time.Duration(r.Start),
		Duration: time.Duration(r.Duration)}
	if r.Span != nil {
		c.Span = *r.Span
	}
	if r.ExitCode != nil {
		code := int(*r.ExitCode)
		c.ExitCode = &code
	}
	return c
}
