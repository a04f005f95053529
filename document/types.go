// Package document reads turn documents and writes receipts. It works on bytes
// only: it starts nothing and reads no files. docs/document.md is the
// specification of the format.
package document

import (
	"time"

	"turnstone.dev/turnstone"
)

// A Document is one parsed turn document.
type Document struct {
	Name   string // for messages: a path, or "<stdin>"
	Source []byte // as given, old results included; not to be changed
	Front  FrontMatter
	Title  string // the text of the first heading, on one line; empty when there is none
	Steps  []*Step

	layout layout // where things stand in Source; see parse.go
}

// FrontMatter is what a document asks for. Zero values mean that it said nothing.
type FrontMatter struct {
	Image   string
	Env     []string // KEY=VALUE, in the document's order
	Files   []string // PATH[:DEST]
	Cwd     string   // absolute; a relative one is taken below DefaultCwd
	Timeout time.Duration
	CPUs    int
	Memory  turnstone.Bytes
	Disk    turnstone.Bytes
	Network *bool

	NetworkRules *NetworkRules // what more is said of the network; nil: nothing
	Isolation    Isolation     // that the sandbox must have at least

	Session  string   // where the turn belongs; empty: in none that has a name
	Branch   string   // of the session
	Lifetime Lifetime // of the sandbox
	Home     string   // name of a persistent home directory; empty: none
	Snapshot Snapshot // what is kept of the machine
}

// NetworkRules are what a document says of a network that is on.
type NetworkRules struct {
	// Allow and Deny are rules as they are written, as "*.example.org:443". Only their
	// form is checked here. With HasAllow what Allow does not name is refused.
	Allow, Deny []string
	HasAllow    bool
	Record      bool   // what comes from the network is kept
	Replay      bool   // it is served from what a turn kept, and the network is not touched
	ReplayOf    string // the turn whose recording it is; empty: the nearest one's
	Intercept   bool   // TLS is opened with a certificate authority of the sandbox's own
	NoHostCA    bool   // the sandbox does not trust the authorities that the host adds to the public ones
}

// An Isolation is how well a sandbox is kept apart from the host.
type Isolation string

// The isolations that a document can ask for. Empty means IsolationAny.
const (
	IsolationAny     Isolation = "any"     // of any substrate
	IsolationMicroVM Isolation = "microvm" // a machine with a kernel of its own, and nothing less
)

// A Lifetime says how long a sandbox lives.
type Lifetime string

// The lifetimes of a sandbox. Empty means LifetimeTurn.
const (
	LifetimeTurn    Lifetime = "turn"    // each turn has one of its own
	LifetimeSession Lifetime = "session" // it is paused after a turn, and goes on in the next
)

// A Snapshot says what is kept of a turn's machine beside its state.
type Snapshot string

// What can be kept. Empty means SnapshotNone.
const (
	SnapshotNone Snapshot = "none"
	SnapshotVM   Snapshot = "vm" // all of it: memory, processes, devices
)

// A Step is one fenced shell block.
type Step struct {
	Index           int    // from 1
	Name            string // given, or "step-<index>"
	Line            int    // of the opening fence, from 1
	Language        string // "bash" or "sh"
	Script          string // the block's content as CommonMark gives it, line ends as "\n"
	Timeout         time.Duration
	Cwd             string // absolute; a relative one is taken below the document's
	Skip            bool
	ContinueOnError bool
	Unparsed        bool // run it even if bash refuses to read it
}

// A TurnInfo is what the receipt's "turn:" map says.
type TurnInfo struct {
	ID        turnstone.TurnID
	Started   time.Time
	Duration  time.Duration
	Template  turnstone.Digest
	Image     string
	Substrate string
	Isolation string
	Machine   string // what it has not got of what was asked for, as "1 of 2 CPUs: …"; empty: nothing
	Result    turnstone.Result
	Error     string // why Result is "error"; one line

	Session string             // its name, or its ID when it has none
	Number  int                // of the turn in its session; 0: none
	Branch  string             // whose newest turn it is
	Parents []turnstone.TurnID // on whose state it began
	Start   string             // what the sandbox began from, as "the template" or "the paused machine"
	FSHash  turnstone.Digest   // of the state that it left; empty when there is none
	Layer   turnstone.Digest   // of what it changed; empty when nothing
	Changes string             // in figures, as "3 added, 1 changed"
	Secrets []string           // names of those that it was given

	Home     string   // its home directory, by name; empty: none
	Lifetime Lifetime // left out unless its machine belongs to the session
	Snapshot Snapshot // left out unless its machine was kept whole
	Network  string   // what is to be said of its network, as "recorded, 3 connections"; empty: nothing
}

// A StepResult is what came of one step.
type StepResult struct {
	Status   turnstone.Status
	ExitCode *int // nil when there is none: the step did not run, or was cut off
	Duration time.Duration
	Note     string // one line for people: "killed: out of memory", "step build failed"
	Stdout   Output
	Stderr   Output

	Network *StepNetwork // nil: the sandbox has none, or nothing happened on it

	Failures     []CommandFailure // the commands that failed, in the order in which they did
	Commands     []CommandRow     // the table of what ran; nil means no table
	CommandsNote string           // one line: what the table does not hold, and why
}

// A CommandFailure is a command of a step that failed. Lines and columns are the
// document's as it was given to Parse, and count from 1; columns count bytes.
type CommandFailure struct {
	Line      int
	Column    int
	EndLine   int
	EndColumn int        // of the byte after the last
	Text      string     // the command's source
	ExitCode  int        // of the command; of a pipeline, bash's
	Tool      string     // who says Message: "bash", "python"; empty if nobody does
	Message   string     // one line of what the command wrote about it
	Excerpt   SourceLine // the fault's place, else the command's; see Document.SourceLine
}

// A CommandRow is a line in the table of a step's commands.
type CommandRow struct {
	Line        int           // of the command in the document, from 1
	Text        string        // the command's source
	Language    string        // "bash", or what the program's own language is
	ExitCodes   []int         // of the last run, of each stage of a pipeline; empty if none is known
	Duration    time.Duration // of all runs
	Count       int64         // how often it ran
	OutputBytes int64         // of standard output and error of all runs; below 0: not known
}

// An Output is one stream of a step, as much of it as was kept in memory.
type Output struct {
	Head   []byte           // the first bytes; all of them when Size == len(Head)
	Tail   []byte           // the last bytes, when Size > len(Head); never overlaps Head
	Size   int64            // bytes in all
	Lines  int64            // newline bytes in all
	Digest turnstone.Digest // of the whole stream
	File   string           // name under which the whole is kept, as the receipt shows it; empty if not kept
	Note   string           // why the whole is not kept, if it should be
}
