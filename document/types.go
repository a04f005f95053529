// Package document parses turn documents and writes receipts. It operates on bytes only: it starts
// no programs and reads no files. docs/document.md specifies the format.
package document

import (
	"time"

	"turnstone.dev/turnstone"
)

// A Document is a parsed turn document.
type Document struct {
	Name   string // for messages: a path, or "<stdin>"
	Source []byte // as given, including old results; must not be changed
	Front  FrontMatter
	Title  string // text of the first heading, on a single line; empty if there is none
	Steps  []*Step

	// Inherited are the keys of front matter whose values are not the author's, but of Defaults: see
	// With.
	Inherited []string
	Defaults  Defaults

	// Ignored lists the first 100 keys of the front matter and attributes of steps that belong to
	// other tools, such as title.
	Ignored []Ignored

	layout layout // positions in Source; see parse.go
}

// FrontMatter holds a document's requests. A zero value means that the document does not set the
// key.
type FrontMatter struct {
	Image   string
	Env     []string // KEY=VALUE, in the document's order
	Files   []string // PATH[:DEST]
	Cwd     string   // absolute; relative paths are below DefaultCwd
	Timeout time.Duration
	CPUs    int
	Memory  turnstone.Bytes
	Disk    turnstone.Bytes
	Network *bool

	NetworkRules *NetworkRules // details of the network; nil: none
	Isolation    Isolation     // minimum for the sandbox

	// Deterministic requests that every run gives the same result; see docs/determinism.md. The
	// following values are set only together with it.
	Deterministic bool
	Tier          turnstone.Tier
	Seed          *uint64   // nil: derived from the document and the state
	Clock         time.Time // when the turn's clock starts; UTC

	Session  string             // the turn's session; empty: an unnamed session
	Branch   string             // branch of the session
	Lifetime turnstone.Lifetime // lifetime of the sandbox
	Home     string             // name of a persistent home directory; empty: none
	Snapshot Snapshot           // what to keep of the machine
	// Checkpoint is when the turn keeps what it has done so far.
	Checkpoint turnstone.Checkpoint
	// Retry is how often the turn starts again after its executor was lost, at most MaxRetry.
	Retry int
}

// NetworkRules are a document's details for an enabled network.
type NetworkRules struct {
	// Allow and Deny are rules as written in the document, such as "*.example.org:443". This
	// package checks only their syntax. With HasAllow, everything that Allow does not match is
	// denied.
	Allow, Deny []string
	HasAllow    bool
	Record      bool   // keep the network's data
	Replay      bool   // serve the data that a turn kept, without using the network
	ReplayOf    string // the turn with the recording; empty: the nearest recording
	Intercept   bool   // intercept TLS with a certificate authority of the sandbox
	NoHostCA    bool   // do not trust the authorities that the host adds to the public authorities
}

// An Isolation is a level of separation between a sandbox and the host.
type Isolation string

// The isolation levels that a document can request. Empty means IsolationAny.
const (
	IsolationAny     Isolation = "any"     // any substrate
	IsolationMicroVM Isolation = "microvm" // a machine with its own kernel
)

// A Snapshot defines what is kept of a turn's machine in addition to its state.
type Snapshot string

// The values of Snapshot. Empty means SnapshotNone.
const (
	SnapshotNone Snapshot = "none"
	SnapshotVM   Snapshot = "vm" // the whole machine: memory, processes, devices
)

// An Ignored is a word for other tools.
type Ignored struct {
	Name string `json:"name"` // on a single line, at most 64 bytes
	Line int    `json:"line"` // from 1
}

// A Step is a fenced shell block.
type Step struct {
	Index           int    // from 1
	Name            string // the given name, or "step-<index>"
	Line            int    // line of the opening fence, from 1
	Language        string // "bash" or "sh"
	Script          string // the block's content as CommonMark defines it, with "\n" line endings
	Timeout         time.Duration
	Cwd             string // absolute; relative paths are below the document's cwd
	Skip            bool
	ContinueOnError bool
	Unparsed        bool // run the step even if bash rejects its syntax
}

// TurnInfo is the content of a receipt's "turn:" map.
type TurnInfo struct {
	ID        turnstone.TurnID
	Started   time.Time
	Duration  time.Duration
	Template  turnstone.Digest
	Image     string
	Substrate string
	Isolation string
	Machine   string // missing requested resources, such as "1 of 2 CPUs: …"; empty: none
	Result    turnstone.Result
	Error     string // why Result is "error"; a single line

	Session string             // the session's name, or its ID if it has no name
	Number  int                // number of the turn in its session; 0: none
	Branch  string             // branch whose newest turn is this turn
	Parents []turnstone.TurnID // turns whose state this turn started from
	// start of the sandbox, such as "the template" or "the paused machine"
	Start   string
	FSHash  turnstone.Digest // digest of the resulting state; empty if there is none
	Layer   turnstone.Digest // digest of the changes; empty if nothing changed
	Changes string           // summary, such as "3 added, 1 changed"
	Secrets []string         // names of the turn's secrets

	Home string // name of the home directory; empty: none
	// HomeBegan and HomeEnded are the FS hashes of the home before and after the turn; empty: none,
	// and no state was kept.
	HomeBegan, HomeEnded turnstone.Digest
	Lifetime             turnstone.Lifetime // omitted unless the machine belongs to the session
	Snapshot             Snapshot           // omitted unless the whole machine was kept
	Network              string             // summary, such as "recorded, 3 connections"; empty: none

	Determinism *turnstone.Determinism // nil: the turn was not deterministic

	Resumed string // how often, and after which steps, such as "once, after step-2"; empty: never
}

// A StepResult is the result of a step.
type StepResult struct {
	Status   turnstone.Status
	ExitCode *int // nil if there is none: the step did not run or was interrupted
	Duration time.Duration
	Note     string // a readable line: "killed: out of memory", "step build failed"
	Stdout   Output
	Stderr   Output

	Network *StepNetwork // nil: no network, or no activity

	Failures     []CommandFailure // the failed commands in order
	Commands     []CommandRow     // the table of commands; nil: no table
	CommandsNote string           // a line that says what is missing from the table, and why
}

// A CommandFailure is a failed command of a step. Lines and columns refer to the document as given
// to Parse and count from 1; columns count bytes.
type CommandFailure struct {
	Line      int // 0: the place is not known
	Column    int
	EndLine   int
	EndColumn int    // column of the byte after the last
	Text      string // the command's source
	// exit code of the command; for a pipeline, the pipeline's exit code in bash
	ExitCode int
	Tool     string     // author of Message: "bash", "python"; empty if there is none
	Message  string     // a line of the command's own error output
	Excerpt  SourceLine // the fault's position, or else the command's; see Document.SourceLine
}

// A CommandRow is a row in the table of a step's commands.
type CommandRow struct {
	Line     int    // line of the command in the document, from 1
	Text     string // the command's source
	Language string // "bash", or the language of the command's program
	// exit codes of the last run, for each stage of a pipeline; empty if unknown
	ExitCodes   []int
	Duration    time.Duration // total of all runs
	Count       int64         // number of runs
	OutputBytes int64         // bytes of standard output and error of all runs; negative: unknown
}

// An Output is a stream of a step, as far as it was kept in memory.
type Output struct {
	Head   []byte           // the first bytes; the complete stream if Size == len(Head)
	Tail   []byte           // the last bytes if Size > len(Head); never overlaps Head
	Size   int64            // total number of bytes
	Lines  int64            // total number of newline bytes
	Digest turnstone.Digest // digest of the whole stream
	// name of the file with the whole stream, as shown in the receipt; empty if not kept
	File string
	Note string // why the whole stream is not kept although it should be
}
