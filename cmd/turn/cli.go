package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/subprocess"
	"turnstone.dev/turnstone/internal/terminal"
)

// The exit statuses of turn. "turn exec" instead exits with the command's status, and with exitExec
// for turn's own failures.
const (
	exitOK      = 0
	exitFailed  = 1   // a step failed or timed out; doctor: nothing can run
	exitUsage   = 2   // the document or the command line is invalid; nothing was started
	exitAborted = 3   // the turn could not be run, or was interrupted
	exitExec    = 125 // "turn exec" itself failed
)

// cli is the command line, as kong parses it.
type cli struct {
	Run    runCmd    `cmd:"" group:"Run documents" help:"Run a document and print its receipt."`
	Exec   execCmd   `cmd:"" group:"Run documents" help:"Run one command in a new sandbox."`
	Check  checkCmd  `cmd:"" group:"Run documents" help:"Check documents without running them."`
	Replay replayCmd `cmd:"" group:"Run documents" help:"Run a turn again and compare the results."`

	Log  logCmd  `cmd:"" group:"Look at turns" help:"List the turns of a session."`
	Show showCmd `cmd:"" group:"Look at turns" help:"Show a turn, its receipt or its changes."`
	Diff diffCmd `cmd:"" group:"Look at turns" help:"Compare the states of two turns."`
	Ls   lsCmd   `cmd:"" group:"Look at turns" help:"List files of a turn's state."`
	Cat  catCmd  `cmd:"" group:"Look at turns" help:"Print a file of a turn's state."`
	Cp   cpCmd   `cmd:"" group:"Look at turns" help:"Copy files out of a turn's state."`

	Session sessionCmd `cmd:"" group:"Work with sessions" help:"List, show, remove, export, import and tag sessions."`
	Fork    forkCmd    `cmd:"" group:"Work with sessions" help:"Create a branch at a turn."`
	Merge   mergeCmd   `cmd:"" group:"Work with sessions" help:"Merge a turn into a branch."`
	Resume  resumeCmd  `cmd:"" group:"Work with sessions" help:"Resume a turn's saved machine."`

	Sandbox  sandboxCmd  `cmd:"" group:"Manage what turns run in" help:"Create, use and remove long-lived sandboxes."`
	Template templateCmd `cmd:"" group:"Manage what turns run in" help:"List, build, show and remove templates."`
	Home     homeCmd     `cmd:"" group:"Manage what turns run in" help:"List and remove persistent home directories."`

	Doctor doctorCmd `cmd:"" group:"Maintain this machine" help:"Check this machine and suggest fixes."`
	Gc     gcCmd     `cmd:"" group:"Maintain this machine" help:"Delete unreachable data."`
	Fsck   fsckCmd   `cmd:"" group:"Maintain this machine" help:"Verify stored turns."`
	Du     duCmd     `cmd:"" group:"Maintain this machine" help:"Show disk usage."`
	Hash   hashCmd   `cmd:"" group:"Maintain this machine" help:"Print the FS hash of a folder."`

	Help       helpCmd       `cmd:"" group:"Get help" help:"Print help about a command or a topic."`
	Version    versionCmd    `cmd:"" group:"Get help" help:"Print the version."`
	Completion completionCmd `cmd:"" group:"Get help" help:"Print a shell completion script."`

	PrepareNext  prepareCmd      `cmd:"" hidden:"" name:"prepare-next"`
	CompleteRefs completeRefsCmd `cmd:"" hidden:"" name:"complete-refs"`

	Verbose int `short:"v" type:"counter" help:"Log more; repeat for debug output."`
}

// app contains the process's streams, which every command needs.
type app struct {
	stdin          *os.File
	stdout, stderr *os.File
	kong           *kong.Kong
	verbose        int
	json           bool   // the command's output is JSON, including errors
	command        string // the running command, such as "session ls"
	env            settings

	onJSON func(command string, doc []byte) // receives the output; for tests
}

// An exitError ends turn with a specific status. Err may be nil if nothing remains to be printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// realMain is main without the exit. onJSON, if it is not nil, receives the output of --json.
func realMain(onJSON func(command string, doc []byte)) int {
	collectLater()
	if err := subprocess.CloseOnExec(); err != nil {
		terminal.Println(os.Stderr, "turn: descriptors that turn has inherited: "+err.Error())
		return exitAborted
	}
	// A reader that disconnects causes a write error, not the end of the process: the sandbox must
	// be removed first.
	signal.Ignore(syscall.SIGPIPE)
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, onJSON: onJSON, env: environment(os.Getenv)}
	if a.env.substrate == "" {
		_ = os.Unsetenv("TURN_SUBSTRATE") // kong would use the empty value
	}
	return a.main(os.Args[1:])
}

func (a *app) main(args []string) int {
	parser, exited, err := newParser(grammarFor(args), a.stdout, a.stderr)
	if err != nil {
		return a.report(&exitError{exitAborted, err})
	}
	a.kong = parser
	if len(args) == 0 {
		args = []string{"--help"}
		parser.Stdout = a.stderr
		_, _ = parser.Parse(args)
		return exitUsage
	}
	kctx, err := parser.Parse(shortRefs(parser.Model.Node, args))
	if *exited {
		return exitOK
	}
	if err != nil {
		a.json = saysJSON(args)
		return a.report(usage(err))
	}
	a.verbose, a.json, a.command = verbosity(kctx), wantsJSON(kctx), commandWords(kctx)
	// log records before a command shows its progress, and those of commands without progress
	a.logTo(a.stderr)
	return a.report(kctx.Run(a))
}

// newParser returns kong's parser; exited becomes true when it has printed help and nothing remains
// to be done. grammar is a result of grammarFor.
func newParser(grammar any, stdout, stderr io.Writer) (*kong.Kong, *bool, error) {
	exited := new(bool)
	p, err := kong.New(grammar,
		kong.Name("turn"),
		kong.Description("Run the shell steps of a markdown document in a sandbox and write the results back into it.\n\n"+
			"\"turn help environment\" lists the environment variables."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { *exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		sizeMapper(),
	)
	return p, exited, err
}

// usage adds a hint at the help to kong's error.
func usage(err error) error {
	hint := "turn --help lists the commands"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil && parse.Context.Command() != "" {
		if words := commandWords(parse.Context); words != "" {
			hint = "turn " + words + " --help lists the flags"
		}
	}
	return &exitError{exitUsage, turnstone.NewError("usage", turnstone.KindInvalid, "", err).
		WithHint(hint)}
}

// commandWords returns the selected subcommand, without its arguments.
func commandWords(ctx *kong.Context) string {
	var words []string
	for _, p := range ctx.Path {
		if p.Command != nil {
			words = append(words, p.Command.Name)
		}
	}
	return strings.Join(words, " ")
}

// report prints err, if it has a text, and returns the exit status.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	code := exitAborted
	var exit *exitError
	if errors.As(err, &exit) {
		code = exit.code
		if exit.err == nil {
			return code
		}
		err = exit.err
	}
	var typed *turnstone.Error
	var write *fs.PathError
	if !errors.As(err, &typed) && errors.As(err, &write) && write.Path == a.stdout.Name() && errors.Is(err, syscall.EPIPE) {
		// like a program that the signal ended: there is no reader
		return 128 + int(syscall.SIGPIPE)
	}
	a.complain(err)
	return code
}

// complain prints err as "turn: …" with its hint below, or as one line of JSON.
func (a *app) complain(err error) {
	if a.json {
		a.command = "" // the same for all commands
		_ = a.writeLine(a.stderr, errorReport{newErrorBody(err)})
		return
	}
	for _, line := range messages(err) {
		terminal.Println(a.stderr, "turn: "+terminal.Printable(line))
	}
	if hint := turnstone.HintOf(err); hint != "" {
		terminal.Println(a.stderr, "hint: "+terminal.Printable(hint))
	}
}

// messages returns one line for each fault, because a document may have several, with the author's
// line below it where that helps.
func messages(err error) []string {
	var several document.SyntaxErrors
	if errors.As(err, &several) {
		var lines []string
		for _, e := range several {
			lines = append(lines, e.Error())
			if src := e.Source; src.Number > 0 {
				text, caret := document.Excerpt(src.Text, src.From, src.To)
				lines = append(lines, fmt.Sprintf("%6d | %s", src.Number, text), "       | "+caret)
			}
		}
		return lines
	}
	return []string{strings.TrimRight(err.Error(), "\n")}
}

// codeOf returns the exit status of an error if nothing was started.
func codeOf(err error) int {
	switch turnstone.KindOf(err) {
	case turnstone.KindInvalid, turnstone.KindNotFound:
		return exitUsage
	}
	return exitAborted
}

// An interruption is a context's cause of cancellation: the user, or a service manager, wants turn
// to stop.
type interruption struct{ signal syscall.Signal }

func (i interruption) Error() string { return "interrupted (" + i.signal.String() + ")" }

// Is makes errors.Is report an interruption as a cancellation.
func (i interruption) Is(target error) bool { return target == context.Canceled }

// interruptible returns a context that ends with the first SIGINT, SIGTERM or SIGHUP. The second
// signal ends the process immediately with code, without any cleanup; the next start cleans up.
func interruptible(tell func(string), code int) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	stop := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case <-stop:
				return
			case s := <-signals:
				if !first {
					os.Exit(code)
				}
				sig, _ := s.(syscall.Signal)
				cancel(interruption{sig})
				tell("interrupted, stopping; once more to stop at once")
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stop)
		cancel(nil)
	}
}

// progress shows the progress of a command with steps on standard error, beside log records. Close
// it.
func (a *app) progress(quiet bool, steps int) *terminal.Progress {
	p := terminal.ShowProgress(a.stderr, quiet, steps)
	a.logTo(p)
	return p
}

// logTo sends log records to w: warnings, with -v also actions, with -vv everything. slog quotes
// its arguments; the sanitizer covers the rest.
func (a *app) logTo(w io.Writer) {
	level := slog.LevelWarn - slog.Level(4*a.verbose)
	slog.SetDefault(slog.New(slog.NewTextHandler(terminal.Cleaner(w), &slog.HandlerOptions{Level: level})))
}
