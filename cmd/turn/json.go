package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/doctor"
	"turnstone.dev/turnstone/internal/doctor/kernelcheck"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// The output of --json is a type of the library, or one of these types. docs/json.md has the rules;
// docs/schemas has a schema of each, which a test generates from the types.

// A versionReport is the output of turn version.
type versionReport struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// A checkReport is the output of turn check: all documents, including those with faults.
type checkReport struct {
	Documents []checked `json:"documents"`
}

// checked is one document.
type checked struct {
	File  string        `json:"file"`
	Steps []checkedStep `json:"steps"` // empty if there are faults
	// the grants by flags that a run on this host needs
	Needs []executor.Ask `json:"needs"`
	Error *errorBody     `json:"error,omitempty"` // its faults
}

type checkedStep struct {
	Name     string `json:"name"`
	Line     int    `json:"line"`
	Language string `json:"language"`
	Skip     bool   `json:"skip"`
}

// A turnReport is the output of turn show.
type turnReport struct {
	*executor.TurnInfo
	Record *recordReport `json:"record"` // null for a running or interrupted turn
}

// A recordReport is a record with its timeout in milliseconds; the stored record has nanoseconds.
type recordReport struct {
	*executor.Record
	Timeout *struct{}        `json:"timeout,omitempty"` // hides the record's
	Limit   turnstone.Millis `json:"timeout_ms,omitzero"`
}

func newTurnReport(i *executor.TurnInfo) turnReport {
	r := turnReport{TurnInfo: i}
	if i.Record != nil {
		r.Record = &recordReport{Record: i.Record, Limit: turnstone.Millis(i.Record.Timeout)}
	}
	return r
}

// A copyReport is the output of turn cp.
type copyReport struct {
	Skipped []skipped `json:"skipped"` // omitted files
	More    int       `json:"skipped_more,omitempty"`
}

type skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// A sessionsReport is the output of turn session ls.
type sessionsReport struct {
	Sessions []executor.SessionInfo `json:"sessions"` // the last used session first
}

// A removedReport lists the removed objects, up to the first failure.
type removedReport struct {
	Removed []string `json:"removed"`
}

// A stoppedReport lists the stopped sandboxes, up to the first failure.
type stoppedReport struct {
	Stopped []string `json:"stopped"`
}

// A sandboxesReport is the output of turn sandbox ls.
type sandboxesReport struct {
	Sandboxes []sandboxes.Info `json:"sandboxes"`
}

// A processesReport is the output of turn sandbox ps.
type processesReport struct {
	Processes []processReport `json:"processes"`
}

// A processReport is one process, as the sandbox reports it.
type processReport struct {
	Process     string      `json:"process"` // its name
	Argv        []string    `json:"argv"`
	Cwd         string      `json:"cwd"`
	PID         int64       `json:"pid"` // in the sandbox
	Started     time.Time   `json:"started"`
	Terminal    bool        `json:"terminal"`
	Attached    int64       `json:"attached"`     // connections
	StdoutFirst int64       `json:"stdout_first"` // offset of the oldest byte that is kept
	StdoutEnd   int64       `json:"stdout_end"`   // bytes so far
	StderrFirst int64       `json:"stderr_first"`
	StderrEnd   int64       `json:"stderr_end"`
	Exit        *exitReport `json:"exit"` // null while it runs
}

// An exitReport describes the end of a process.
type exitReport struct {
	// 128 plus the signal's number if a signal ended it
	Code      int64            `json:"exit_code"`
	Signal    string           `json:"signal,omitempty"`
	OOMKilled bool             `json:"oom_killed"`
	DiskFull  bool             `json:"disk_full"`
	Killed    bool             `json:"killed"` // on request, or because its connection ended
	Duration  turnstone.Millis `json:"duration_ms"`
}

func newProcessesReport(all []wire.ProcessProcessInfo) processesReport {
	r := processesReport{Processes: []processReport{}}
	for _, p := range all {
		// from the sandbox: zero if it is not a time
		started, _ := time.Parse(time.RFC3339Nano, p.Started)
		out := processReport{Process: p.ProcessID, Argv: slices.Concat([]string{}, p.Argv), Cwd: p.Cwd, PID: p.PID, Started: started, Terminal: p.Terminal,
			Attached: p.Attached, StdoutFirst: p.StdoutFirst, StdoutEnd: p.StdoutEnd, StderrFirst: p.StderrFirst, StderrEnd: p.StderrEnd}
		if e := p.Exit; e != nil {
			out.Exit = &exitReport{Code: e.ExitCode, Signal: e.Signal, OOMKilled: e.OOMKilled, DiskFull: e.DiskFull, Killed: e.Killed,
				Duration: turnstone.Millis(e.Duration)}
		}
		r.Processes = append(r.Processes, out)
	}
	return r
}

// A templatesReport is the output of turn template ls.
type templatesReport struct {
	Templates []template.Entry `json:"templates"`
}

// A hashReport is the output of turn hash.
type hashReport struct {
	Hash turnstone.Digest `json:"fs_hash"`
	tree.Counts
}

// A doctorReport is the output of turn doctor.
type doctorReport struct {
	Usable   bool                      `json:"usable"` // turns can run here, or machines with the kernel
	Findings []doctor.Finding          `json:"findings"`
	Kernel   *kernelcheck.KernelReport `json:"kernel,omitempty"` // with --kernel
}

// An errorReport is the last line on standard error if a command with --json fails.
type errorReport struct {
	Error errorBody `json:"error"`
}

// An errorBody is an error. Op and Kind are for programs, the rest for users.
type errorBody struct {
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

func newErrorBody(err error) errorBody {
	b := errorBody{Kind: turnstone.KindOf(err), Message: strings.TrimRight(err.Error(), "\n"), Hint: turnstone.HintOf(err)}
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

// writeJSON prints v as a JSON document on standard output.
func (a *app) writeJSON(v any) error { return a.encode(a.stdout, v, "  ") }

// writeLine prints v as one line of JSON.
func (a *app) writeLine(w io.Writer, v any) error { return a.encode(w, v, "") }

func (a *app) encode(w io.Writer, v any, indent string) error {
	b, err := terminal.JSON(v, indent)
	if err != nil {
		return err
	}
	if a.onJSON != nil {
		a.onJSON(a.command, b)
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
