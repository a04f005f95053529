package turnstone

import "time"

// A TraceLine is one line of a trace: exactly one of its fields is set. docs/trace.md specifies the
// order of the lines.
type TraceLine struct {
	Turn    *TraceHead     `json:"turn,omitempty"`    // the first line
	Step    *TraceStep     `json:"step,omitempty"`    // before its commands
	Command *CommandReport `json:"command,omitempty"` // of the step above
	End     *TraceEnd      `json:"end,omitempty"`     // the last line
}

// A TraceHead describes the turn of a trace.
type TraceHead struct {
	Format    int       `json:"format"`
	ID        TurnID    `json:"id"`
	Session   SessionID `json:"session,omitempty"`
	Number    int       `json:"number,omitempty"`
	Image     string    `json:"image"`
	Substrate string    `json:"substrate,omitempty"`
	Started   time.Time `json:"started"`
	Millis    int64     `json:"duration_ms"`
	Result    Result    `json:"result"`
}

// A TraceStep describes one step of a trace.
type TraceStep struct {
	Index    int       `json:"index"` // from 1
	Name     string    `json:"name"`
	Line     int       `json:"line"` // in the document
	Language string    `json:"language"`
	Status   Status    `json:"status"`
	ExitCode *int      `json:"exit_code"`        // null: it did not run, or not end by itself
	Started  time.Time `json:"started,omitzero"` // zero: it did not run
	Millis   int64     `json:"duration_ms"`
	Note     string    `json:"note,omitempty"`

	Commands int64  `json:"command_count"`      // all that ran
	LeftOut  int64  `json:"left_out,omitempty"` // commands that ran and have no line
	Untraced string `json:"untraced,omitempty"` // why LeftOut may be too small

	Stdout  OutputInfo     `json:"stdout"`
	Stderr  OutputInfo     `json:"stderr"`
	Network *NetworkReport `json:"network,omitempty"` // absent: nothing happened on it
	// Connections are connections that ended during the step; at most 256.
	Connections []ConnectionReport `json:"connections,omitempty"`
}

// A ConnectionReport is a network connection that was allowed, and has ended.
type ConnectionReport struct {
	Protocol string    `json:"protocol"` // "tcp", "udp", "tls"
	Host     string    `json:"host,omitempty"`
	Address  string    `json:"address,omitempty"` // with the port
	Start    time.Time `json:"start"`
	End      time.Time `json:"end"`
	Sent     int64     `json:"sent"`     // bytes, by the guest
	Received int64     `json:"received"` // bytes
}

// A TraceEnd counts the lines of a trace.
type TraceEnd struct {
	Steps    int   `json:"steps"`
	Commands int64 `json:"commands"`           // that have a line
	LeftOut  int64 `json:"left_out,omitempty"` // of all steps
}

// A TraceReport is a whole trace, as --json prints it.
type TraceReport struct {
	Turn  TraceHead         `json:"turn"`
	Steps []TraceStepReport `json:"steps"`
	End   TraceEnd          `json:"end"`
}

// A TraceStepReport is one step of a trace with its commands.
type TraceStepReport struct {
	TraceStep
	Ran []CommandReport `json:"commands"`
}

// Add adds a line of a trace, which follows the lines that were added before.
func (t *TraceReport) Add(l TraceLine) error {
	switch {
	case l.Turn != nil:
		t.Turn = *l.Turn
	case l.Step != nil:
		t.Steps = append(t.Steps, TraceStepReport{TraceStep: *l.Step, Ran: []CommandReport{}})
	case l.Command != nil && len(t.Steps) > 0:
		s := &t.Steps[len(t.Steps)-1]
		s.Ran = append(s.Ran, *l.Command)
	case l.End != nil:
		t.End = *l.End
	}
	return nil
}
