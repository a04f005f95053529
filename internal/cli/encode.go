package cli

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/terminal"
)

// An ErrorReport is the last line on standard error if a command with --json fails.
type ErrorReport struct {
	Error ErrorBody `json:"error"`
}

// An ErrorBody is an error. Op and Kind are for programs, the rest for users.
type ErrorBody struct {
	Op      turnstone.Op   `json:"op"`      // the operation, such as "session.resolve"
	Kind    turnstone.Kind `json:"kind"`    // the kind of the error
	Subject string         `json:"subject"` // the object of the operation; may be empty
	Message string         `json:"message"`
	Hint    string         `json:"hint"`             // the remedy; may be empty
	Faults  []faultReport  `json:"faults,omitempty"` // of a document, each with its position
}

// A faultReport is one fault of a document.
type faultReport struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // from 1, in bytes
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func NewErrorBody(err error) ErrorBody {
	b := ErrorBody{Kind: turnstone.KindOf(err), Message: strings.TrimRight(err.Error(), "\n"),
		Hint: turnstone.HintOf(err)}
	var typed *turnstone.Error
	if errors.As(err, &typed) {
		b.Op, b.Subject = typed.Op, typed.Subject
	}
	var several document.SyntaxErrors
	if errors.As(err, &several) {
		for _, f := range several {
			b.Faults = append(b.Faults, faultReport{f.File, f.Line, f.Column, f.Msg, f.Hint})
		}
	}
	return b
}

// WriteJSON prints v as a JSON document on standard output.
func (a *App) WriteJSON(v any) error { return a.encode(a.Stdout, v, "  ") }

// WriteLine prints v as one line of JSON.
func (a *App) WriteLine(w io.Writer, v any) error { return a.encode(w, v, "") }

func (a *App) encode(w io.Writer, v any, indent string) error {
	b, err := terminal.JSON(v, indent)
	if err != nil {
		return err
	}
	if a.onJSON != nil {
		a.onJSON(a.Command, b)
	}
	_, err = w.Write(b)
	return err
}

// wantsJSON reports whether the selected command has the flag --json.
func wantsJSON(ctx *kong.Context) bool {
	for _, f := range ctx.Flags() {
		if f.Name == "json" {
			on, _ := ctx.FlagValue(f).(bool)
			return on
		}
	}
	return false
}

// saysJSON is wantsJSON for arguments without a command.
func saysJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// A RemovedReport lists the removed objects, up to the first failure.
type RemovedReport struct {
	Removed []string `json:"removed"`
}

// Result prints v, which a call has returned with err: as JSON if the command has --json, otherwise
// with text, which may be nil. If the call has failed, Result prints nothing and returns err.
func (a *App) Result(v any, err error, text func(w io.Writer)) error {
	switch {
	case err != nil:
		return err
	case a.asJSON:
		return a.WriteJSON(v)
	case text == nil:
		return nil
	}
	out := bufio.NewWriter(a.Stdout) // keeps the first error
	text(out)
	return out.Flush()
}

// Partial prints the report v as JSON if the command has --json, even if the command has failed
// with err: v lists what was done before. It returns err.
func (a *App) Partial(v any, err error) error {
	if !a.asJSON {
		return err
	}
	return errors.Join(a.WriteJSON(v), err)
}
