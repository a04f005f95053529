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
}

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
	Result    turnstone.Result
	Error     string // why Result is "error"; one line
}

// A StepResult is what came of one step.
type StepResult struct {
	Status   turnstone.Status
	ExitCode *int // nil when there is none: the step did not run, or was cut off
	Duration time.Duration
	Note     string // one line for people: "killed: out of memory", "step build failed"
	Stdout   Output
	Stderr   Output
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
