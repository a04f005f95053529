// Package turnlog writes the progress of a turn as lines of JSON, its journal, and reads them back:
// a client that follows a turn over a network sees what an observer beside the turn sees.
package turnlog

import (
	"errors"

	"turnstone.dev/turnstone"
)

// Bounds of a journal. A step's output beyond MaxOutput of all steps together is left out; the
// receipt is not affected.
const (
	MaxOutput = 64 << 20 // bytes of output
	MaxLine   = 64 << 20 // bytes of a line
	maxReport = 1 << 30  // bytes of a turn's report
	chunk     = 512 << 10
)

// A Line is one line of a journal. Exactly one field is set.
type Line struct {
	Preparing string    `json:"preparing,omitempty"`
	Started   int       `json:"started,omitempty"` // index of the step, from 1
	Output    *Output   `json:"output,omitempty"`
	Finished  *Finished `json:"finished,omitempty"`
	Report    []byte    `json:"report,omitempty"` // a part of the report's JSON
	End       *End      `json:"end,omitempty"`

	Step *Step `json:"step,omitempty"` // only in the journal of a JobWriter
	Item *Item `json:"item,omitempty"` // the same
}

// An Output is a part of a step's output.
type Output struct {
	Step    int              `json:"step"`
	Stream  turnstone.Stream `json:"stream"` // 1: standard output, 2: standard error
	Data    []byte           `json:"data,omitempty"`
	Omitted int64            `json:"omitted,omitempty"` // bytes that are left out here
}

// A Finished is the end of a step.
type Finished struct {
	Step   int                  `json:"step"`
	Report turnstone.StepReport `json:"report"`
}

// An End is the last line. The Report lines directly before it have the report, if the turn was
// started. Report lines that another line follows are of a writer that died, and do not count.
type End struct {
	Kind  turnstone.Kind `json:"kind,omitempty"` // of the report's error, which --json does not have
	Error *Error         `json:"error,omitempty"`
	// Kinds are the kinds of the turns' errors in the report of a JobWriter.
	Kinds []turnstone.Kind `json:"kinds,omitempty"`
}

// An Error is a typed error.
type Error struct {
	Op      turnstone.Op   `json:"op,omitempty"`
	Kind    turnstone.Kind `json:"kind"`
	Subject string         `json:"subject,omitempty"`
	Hint    string         `json:"hint,omitempty"`
	Cause   string         `json:"cause,omitempty"`
}

// errorOf returns err for a journal; nil for nil.
func errorOf(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Kind: turnstone.KindOf(err), Hint: turnstone.HintOf(err)}
	var te *turnstone.Error
	if !errors.As(err, &te) {
		e.Cause = err.Error()
		return e
	}
	e.Op, e.Subject = te.Op, te.Subject
	if te.Err != nil {
		e.Cause = te.Err.Error()
	}
	return e
}

// err returns the error of a journal, with bounded fields.
func (e *Error) err() error {
	if e == nil {
		return nil
	}
	const most = 4000
	clip := func(s string) string { return s[:min(len(s), most)] }
	var cause error
	if e.Cause != "" {
		cause = errors.New(clip(e.Cause))
	}
	return turnstone.NewError(turnstone.Op(clip(string(e.Op))), e.Kind, clip(e.Subject), cause).
		WithHint(clip(e.Hint))
}
