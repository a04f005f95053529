package turnstone

// A StepReport is one step's result as --json prints it. Stdout and Stderr are the receipt's texts.
// If a text was cut, the File of StdoutInfo or StderrInfo has the whole output.
type StepReport struct {
	Name       string     `json:"name"`
	Line       int        `json:"line"`
	Status     Status     `json:"status"`
	ExitCode   *int       `json:"exit_code"` // null: the step did not run, or did not end by itself
	Millis     int64      `json:"duration_ms"`
	Note       string     `json:"note,omitempty"`
	Stdout     string     `json:"stdout"`
	Stderr     string     `json:"stderr"`
	StdoutInfo OutputInfo `json:"stdout_info"`
	StderrInfo OutputInfo `json:"stderr_info"`

	Commands     []CommandReport `json:"commands,omitempty"` // the recorded commands, by start
	CommandCount int64           `json:"command_count"`      // number of all commands that ran
	// commands that are not in Commands because they were too many
	CommandsDropped int64 `json:"commands_dropped,omitempty"`
	// why Commands is incomplete
	Untraced string          `json:"untraced,omitempty"`
	Failures []FailureReport `json:"failures,omitempty"` // the commands that failed

	Network *NetworkReport `json:"network,omitempty"` // absent: no network activity
}

// OutputInfo describes one whole output stream.
type OutputInfo struct {
	Bytes     int64  `json:"bytes"`
	Digest    Digest `json:"digest"`
	Truncated bool   `json:"truncated"`      // Stdout or Stderr was cut
	File      string `json:"file,omitempty"` // the file with the whole output, if it was kept
}

// A CommandReport is one run of one command, as --json prints it.
type CommandReport struct {
	ID       int        `json:"id"`
	Parent   int        `json:"parent"` // the command that started this command; -1: none
	Kind     string     `json:"kind"`
	Language string     `json:"language"`
	Text     string     `json:"text"`            // its source text, or its words
	Place    *Place     `json:"place,omitempty"` // absent: the command is not in the document
	Span     *Range     `json:"span,omitempty"`  // the bytes of the step's script
	Stage    int        `json:"stage,omitempty"` // position in a pipeline, from 1
	Start    Millis     `json:"start_ms"`        // time since the step's start
	Duration Millis     `json:"duration_ms"`
	ExitCode *int       `json:"exit_code"` // null: unknown
	Stdin    *InputInfo `json:"stdin,omitempty"`
	// the command's part of the step's output; absent: unknown
	Stdout *Range   `json:"stdout,omitempty"`
	Stderr *Range   `json:"stderr,omitempty"`
	Flags  []string `json:"flags,omitempty"`
}

// A Range is a part of a stream or text, in bytes. To is exclusive.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// InputInfo describes the standard input of a command.
type InputInfo struct {
	Kind   string `json:"kind"`
	Text   string `json:"text,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	Digest Digest `json:"digest,omitempty"`
}

// A FailureReport is a command that failed, with the message that explains the failure.
type FailureReport struct {
	// Place is that of the command in the document, or of the command there that ran it, such as eval or an alias.
	Place    *Place `json:"place,omitempty"`
	Text     string `json:"text"`
	ExitCode int    `json:"exit_code"`
	// the program that printed Message: bash, python, node, jq, …
	Tool    string `json:"tool,omitempty"`
	Message string `json:"message,omitempty"`
	Fault   *Place `json:"fault,omitempty"`  // the place that the message names, in the document
	Frames  []int  `json:"frames,omitempty"` // lines of the document, outermost first
}

// A NetworkReport is a step's network activity, as --json prints it.
type NetworkReport struct {
	Connections int64           `json:"connections"`
	Sent        int64           `json:"sent"`     // bytes that the guest sent
	Received    int64           `json:"received"` // bytes that the guest received
	Refused     []RefusalReport `json:"refused,omitempty"`
	MoreRefused int64           `json:"more_refused,omitempty"` // refusals that are not in Refused
}

// A RefusalReport is a network action of a step that was refused.
type RefusalReport struct {
	Protocol string `json:"protocol"`
	Target   string `json:"target"`
	Host     string `json:"host,omitempty"`
	Address  string `json:"address,omitempty"`
	Reason   string `json:"reason"`
	Count    int64  `json:"count"`
	// the source text of the command that ran at that time
	Command string `json:"command,omitempty"`
	Place   *Place `json:"place,omitempty"` // of the command
}

// Place is the position of a span of a step's script in the document.
type Place struct {
	Line      int `json:"line"`
	Column    int `json:"column"` // in bytes, from 1
	EndLine   int `json:"end_line"`
	EndColumn int `json:"end_column"` // column of the byte after the last byte
}

// A Stream is one of a step's two outputs.
type Stream int

// The streams of a step.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)
