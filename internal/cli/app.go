// Package cli is the frame of a command line: streams, environment, errors and exit statuses, JSON,
// and the executor that a command uses.
package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/subprocess"
	"turnstone.dev/turnstone/internal/terminal"
)

// App contains the process's streams, which every command needs.
type App struct {
	Stdin          *os.File
	Stdout, Stderr *os.File
	grammar        reflect.Type
	naming         *naming
	Kong           *kong.Kong
	Verbose        int
	asJSON         bool   // the command's output is JSON, including errors
	Command        string // the running command, such as "session ls"
	Env            Settings

	onJSON func(command string, doc []byte) // receives the output; for tests
}

// Main runs the command line of this process, and returns its exit status. grammar points to
// what kong reads. onJSON, if it is not nil, receives the output of --json.
func Main(grammar any, onJSON func(command string, doc []byte)) int {
	collectLater()
	if err := subprocess.CloseOnExec(); err != nil {
		terminal.Println(os.Stderr, "turn: inherited file descriptors: "+err.Error())
		return ExitAborted
	}
	// A reader that disconnects causes a write error, not the end of the process: the sandbox must
	// be removed first.
	signal.Ignore(syscall.SIGPIPE)
	a := &App{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		onJSON: onJSON, Env: environment(os.Getenv)}
	if a.Env.Substrate == "" {
		_ = os.Unsetenv("TURN_SUBSTRATE") // kong would use the empty value
	}
	a.naming = namingFor(calledBy(os.Args[0]), reflect.TypeOf(grammar).Elem())
	return a.Main(grammar, os.Args[1:])
}

// Main runs the command line args, and returns the exit status.
func (a *App) Main(grammar any, args []string) int {
	a.grammar = reflect.TypeOf(grammar).Elem()
	parser, exited, err := newParser(a.naming, GrammarFor(a.grammar, args), a.Stdout, a.Stderr)
	if err != nil {
		return a.report(Exit(ExitAborted, err))
	}
	a.Kong = parser
	if len(args) == 0 {
		args = []string{"--help"}
		parser.Stdout = a.Stderr
		_, _ = parser.Parse(args)
		return ExitUsage
	}
	kctx, err := parser.Parse(ShortRefs(parser.Model.Node, args))
	if *exited {
		return ExitOK
	}
	if err != nil {
		a.asJSON = saysJSON(args)
		return a.report(Usage(dashed(withoutEmptyChoice(err))))
	}
	a.Verbose, a.asJSON, a.Command = verbosity(kctx), wantsJSON(kctx), commandWords(kctx)
	// log records before a command shows its progress, and those of commands without progress
	a.LogTo(a.Stderr)
	return a.report(kctx.Run(a))
}

// withoutEmptyChoice removes the empty value from the choices that kong's error lists. The empty
// value is the default of a flag that may be absent; it is not a choice for users.
func withoutEmptyChoice(err error) error {
	const one = " must be one of "
	if text := err.Error(); strings.Contains(text, one+`"",`) {
		return errors.New(strings.Replace(text, one+`"",`, one, 1))
	}
	return err
}

// dashed says plainly that the value of a flag begins with a dash, which kong's error calls a flag.
func dashed(err error) error {
	m := dashedValue.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	return turnstone.Errorf("usage", turnstone.KindInvalid, "", "%s has no value: %q begins with a "+
		"dash, as a flag does", m[1], m[2]).WithHint("write " + m[1] + "=" + m[2] + " if it is the value")
}

var dashedValue = lazyregexp.New(
	`^(--[a-z-]+): expected .* value but got "(-.*)" \(.*flag\); perhaps try `)

// Help prints the help of a command, or of turn.
func (a *App) Help(command []string) error {
	parser, exited, err := newParser(a.naming, reflect.New(a.grammar).Interface(), a.Stdout, a.Stderr)
	if err != nil {
		return err
	}
	if _, err := parser.Parse(append(command, "--help")); err != nil && !*exited {
		return Usage(err)
	}
	return nil
}

// NewParser returns kong's parser; exited becomes true when it has printed help and nothing remains
// to be done. grammar is a result of GrammarFor.
func NewParser(grammar any, stdout, stderr io.Writer) (*kong.Kong, *bool, error) {
	return newParser(nil, grammar, stdout, stderr)
}

func newParser(n *naming, grammar any, stdout, stderr io.Writer) (*kong.Kong, *bool, error) {
	exited := new(bool)
	p, err := kong.New(grammar,
		kong.Name(n.String()),
		kong.Description("Run the shell steps of a markdown document in a sandbox "+
			"and write the results back into it.\n\n"+
			"\"turn help environment\" lists the environment variables."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { *exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{
			Compact: true, NoExpandSubcommands: true, FlagsLast: true}),
		kong.Help(n.printHelp),
		kong.PostBuild(nameGroups),
		kong.PostBuild(n.help),
		sizeMapper(),
	)
	return p, exited, err
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

// Progress shows the progress of a command with steps on standard error, beside log records. Close
// it.
func (a *App) Progress(quiet bool, steps int) *terminal.Progress {
	p := terminal.ShowProgress(a.Stderr, quiet, steps)
	a.LogTo(p)
	return p
}

// LogTo sends log records to w: warnings, with -v also actions, with -vv everything. slog quotes
// its arguments; the sanitizer covers the rest.
func (a *App) LogTo(w io.Writer) {
	level := slog.LevelWarn - slog.Level(4*a.Verbose)
	h := slog.NewTextHandler(terminal.Cleaner(w), &slog.HandlerOptions{Level: level})
	slog.SetDefault(slog.New(h))
}

// sizeMapper parses sizes in the form of the whole project.
func sizeMapper() kong.Option {
	return kong.TypeMapper(reflect.TypeFor[turnstone.Bytes](), kong.MapperFunc(
		func(ctx *kong.DecodeContext, target reflect.Value) error {
			var text string
			if err := ctx.Scan.PopValueInto("size", &text); err != nil {
				return err
			}
			size, err := turnstone.ParseBytes(text)
			if err != nil {
				return err
			}
			if size == 0 {
				return fmt.Errorf("%q: the size must not be zero", text)
			}
			target.SetInt(int64(size))
			return nil
		}))
}
