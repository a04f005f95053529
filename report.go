package turnstone

// A StepReport is one step's result as --json prints it. Stdout and Stderr are what the receipt
// shows; the files of StdoutInfo and StderrInfo have the whole output when it was cut.
type StepReport struct {
	Name       string     `json:"name"`
	Line       int        `json:"line"`
	Status     Status     `json:"status"`
	ExitCode   *int       `json:"exit_code"` // null: it did not run, or not end by itself
	Millis     int64      `json:"duration_ms"`
	Note       string     `json:"note,omitempty"`
	Stdout     string     `json:"stdout"`
	Stderr     string     `json:"stderr"`
	StdoutInfo OutputInfo `json:"stdout_info"`
	StderrInfo OutputInfo `json:"stderr_info"`

	Commands        []CommandReport `json:"commands,omitempty"`         // what ran, by start
	CommandCount    int64           `json:"command_count"`              // all that ran
	CommandsDropped int64           `json:"commands_dropped,omitempty"` // too many for Commands
	Untraced        string          `json:"untraced,omitempty"`         // why Commands is not all
	Failures        []FailureReport `json:"failures,omitempty"`         // the commands that failed

	Network *NetworkReport `json:"network,omitempty"` // absent: nothing happened on it
}

// OutputInfo describes one whole output stream.
type OutputInfo struct {
	Bytes     int64  `json:"bytes"`
	Digest    Digest `json:"digest"`
	Truncated bool   `json:"truncated"`      // Stdout or Stderr is not the whole
	File      string `json:"file,omitempty"` // where the whole is kept, when it is
}

// A CommandReport is one run of one command, as --json prints it.
type CommandReport struct {
	ID       int        `json:"id"`
	Parent   int        `json:"parent"` // the run in which it ran; -1: none
	Kind     string     `json:"kind"`
	Language string     `json:"language"`
	Text     string     `json:"text"`            // its source, or its words
	Place    *Place     `json:"place,omitempty"` // absent: not in the document
	Span     *Range     `json:"span,omitempty"`  // bytes of the step's script
	Stage    int        `json:"stage,omitempty"` // of a pipeline, from 1
	Start    Millis     `json:"start_ms"`        // since the step began
	Duration Millis     `json:"duration_ms"`
	ExitCode *int       `json:"exit_code"` // null: not known
	Stdin    *InputInfo `json:"stdin,omitempty"`
	// its part of the step's output; absent: not known
	Stdout *Range   `json:"stdout,omitempty"`
	Stderr *Range   `json:"stderr,omitempty"`
	Flags  []string `json:"flags,omitempty"`
}

// A Range is a part of a stream or text, in bytes, without its end.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// InputInfo is what a command was given to read.
type InputInfo struct {
	Kind   string `json:"kind"`
	Text   string `json:"text,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	Digest Digest `json:"digest,omitempty"`
}

// A FailureReport is a command that failed, with what it said of it.
type FailureReport struct {
	Place    *Place `json:"place,omitempty"` // of the command in the document
	Text     string `json:"text"`
	ExitCode int    `json:"exit_code"`
	Tool     string `json:"tool,omitempty"` // who says Message: bash, python, node, jq, …
	Message  string `json:"message,omitempty"`
	Fault    *Place `json:"fault,omitempty"`  // the place that the message names, in the document
	Frames   []int  `json:"frames,omitempty"` // lines of the document, outermost first
}

// A NetworkReport is what a step did on the network, as --json prints it.
type NetworkReport struct {
	Connections int64           `json:"connections"`
	Sent        int64           `json:"sent"`     // bytes, by the guest
	Received    int64           `json:"received"` // bytes
	Refused     []RefusalReport `json:"refused,omitempty"`
	MoreRefused int64           `json:"more_refused,omitempty"` // attempts that are not in Refused
}

// A RefusalReport is something that a step was not let do.
type RefusalReport struct {
	Protocol string `json:"protocol"`
	Target   string `json:"target"`
	Host     string `json:"host,omitempty"`
	Address  string `json:"address,omitempty"`
	Reason   string `json:"reason"`
	Count    int64  `json:"count"`
	Command  string `json:"command,omitempty"` // the source of what ran then
	Place    *Place `json:"place,omitempty"`   // of the command
}

// Place is where a span of a step's script stands in the document.
type Place struct {
	Line      int `json:"line"`
	Column    int `json:"column"` // in bytes, from 1
	EndLine   int `json:"end_line"`
	EndColumn int `json:"end_column"` // of the byte after the last
}

// A Stream is one of a step's two outputs.
type Stream int

// The streams of a step.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)
