package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/terminal"
)

// The exit statuses of turn. "turn exec" instead exits with the command's status, and with ExitExec
// for turn's own failures.
const (
	ExitOK       = 0
	ExitFailed   = 1   // a step failed or timed out; doctor: nothing can run
	ExitUsage    = 2   // the document or the command line is invalid; nothing was started
	ExitAborted  = 3   // the turn could not be run, or was interrupted
	ExitUnsigned = 4   // verify: something is not signed
	ExitUnproven = 5   // verify: something does not verify
	ExitExec     = 125 // "turn exec" itself failed

	// Conventional statuses: of timeout(1), and of the shell.
	ExitTimeout  = 124
	ExitNoExec   = 126
	ExitNotFound = 127
)

// An ExitError ends turn with a specific status. Err may be nil if nothing remains to be printed.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Exit returns an error that ends turn with code. Err may be nil if nothing remains to be printed.
func Exit(code int, err error) error { return &ExitError{code, err} }

// Fail is Exit with the status of err if nothing was started.
func Fail(err error) error { return &ExitError{CodeOf(err), err} }

// CodeOf returns the exit status of an error if nothing was started.
func CodeOf(err error) int {
	switch turnstone.KindOf(err) {
	case turnstone.KindInvalid, turnstone.KindNotFound:
		return ExitUsage
	}
	return ExitAborted
}

// Usage adds a hint at the help to an error of the command line that has no hint. An error of writing
// the help is not the command line's.
func Usage(err error) error {
	var write *fs.PathError
	if errors.As(err, &write) && write.Op == "write" {
		return Exit(ExitAborted, write)
	}
	hint := "list the commands with turn --help"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil && parse.Context.Command() != "" {
		if words := commandWords(parse.Context); words != "" {
			hint = "list the flags with turn " + words + " --help"
			if n := parse.Context.Selected(); n != nil && !n.Leaf() {
				hint = "list the commands with turn " + words + " --help"
			}
		}
	}
	if own := turnstone.HintOf(err); own != "" {
		hint = own
	}
	err = turnstone.NewError("usage", turnstone.KindInvalid, "", err).WithHint(hint)
	return Exit(ExitUsage, err)
}

// report prints err, if it has a text, and returns the exit status.
func (a *App) report(err error) int {
	if err == nil {
		return ExitOK
	}
	code := ExitAborted
	var exit *ExitError
	if errors.As(err, &exit) {
		code = exit.Code
		if exit.Err == nil {
			return code
		}
		err = exit.Err
	}
	var typed *turnstone.Error
	var write *fs.PathError
	if !errors.As(err, &typed) && errors.As(err, &write) && write.Path == a.Stdout.Name() &&
		errors.Is(err, syscall.EPIPE) {
		// like a program that the signal ended: there is no reader
		return 128 + int(syscall.SIGPIPE)
	}
	a.Complain(err)
	return code
}

// Complain prints err as "turn: …" or "kubectl turn: …" with its hint below, or as one line of JSON,
// whose hint says turn.
func (a *App) Complain(err error) {
	if a.asJSON {
		a.Command = "" // the same for all commands
		_ = a.WriteLine(a.Stderr, ErrorReport{NewErrorBody(err)})
		return
	}
	for _, line := range messages(err) {
		terminal.Println(a.Stderr, a.naming.String()+": "+terminal.Printable(line))
	}
	if hint := a.naming.hint(err); hint != "" {
		terminal.Println(a.Stderr, "hint: "+terminal.Printable(a.naming.in(hint)))
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
