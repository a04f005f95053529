package executor

import (
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// A Request is one turn to run. Values that are zero leave the document's word, and then the
// default, in force.
type Request struct {
	Document *document.Document
	Dir      string // what the document's files: are relative to, and may not leave
	Piped    bool   // Dir is the caller's, and not the document's, which came through a pipe
	// Grant are keys of front matter, such as "network": what the document asks for there
	// is granted as it stands. The other fields say what their caller grants by itself.
	Grant   []string
	Image   string
	Env     []string // KEY=VALUE
	Add     []document.Transfer
	Get     []document.Transfer
	Timeout time.Duration
	CPUs    int
	Memory  turnstone.Bytes
	Disk    turnstone.Bytes
	Network *bool
	// NetworkRules come beside the document's: see docs/network.md. With Network the mode
	// (Record, Replay) is theirs, and not the document's.
	NetworkRules  *document.NetworkRules
	SecretHeaders []string // "HOST=Name: value", sent in requests to that host only
	Substrate     string   // "auto" or a substrate's name
	Commands      bool     // the receipt lists all commands of each step

	Session  string             // name or ID; empty: an anonymous one
	Branch   string             // default "main"
	Lifetime turnstone.Lifetime // of the sandbox
	Home     string             // a persistent home directory
	Snapshot document.Snapshot  // what is kept of the machine
	Secrets  []string           // NAME=VALUE: in the steps' environment, and nowhere else
}

// An Observer is told of a turn's progress while it runs. Its methods are called
// from several goroutines, one call at a time for each step's stream; a slow
// observer slows the step down.
type Observer interface {
	// Preparing is called before work that can take long, "building template
	// python", and with what is to be known beside the steps, as a file that was
	// left out. It is one line of text, for people.
	Preparing(what string)
	StepStarted(step *document.Step)
	StepOutput(step *document.Step, stream turnstone.Stream, p []byte)
	StepFinished(step *document.Step, report turnstone.StepReport)
}

// ReplayOptions are the options of a replay; the rest comes from the stored turn.
type ReplayOptions struct {
	Secrets   []string // NAME=VALUE: they were not kept, and have to be given again
	Substrate string   // a substrate's name; empty: what ran the turn
	// Grant is as in Request: a record may be imported, and grants no more than a document.
	Grant []string
}

// A CommandRequest is one command to run in a fresh sandbox.
type CommandRequest struct {
	Argv     []string
	Image    string // default "base"
	Env      []string
	Cwd      string
	Add, Get []document.Transfer
	Timeout  time.Duration
	Shape    turnstone.Shape        // zero: the default
	Network  *turnstone.NetworkSpec // rules of its network; nil: the host's
	// HostNetwork says that nobody said whether there is to be a network, so the host's
	// default counts, and not Shape.Network.
	HostNetwork bool
	Substrate   string
	Stdin       io.Reader // nil: nothing
	Stdout      io.Writer
	Stderr      io.Writer
}

// A ResumeRequest is one kept machine to start. What it says of the network is its caller's word.
type ResumeRequest struct {
	Ref  string
	Name string        // of the sandbox
	TTL  time.Duration // 0: for ever
	// Grant, Network and NetworkRules are as in Request; of the rules only allow, deny and
	// the host's authorities count.
	Grant        []string
	Network      *bool
	NetworkRules *document.NetworkRules
}

// A MergeRequest selects the turns to merge, and decides conflicts: docs/merge.md has the rules.
type MergeRequest struct {
	// From is the turn to merge: a reference to a turn, or a branch, a tag or a number if the
	// session is named or can be found by the branch.
	From    string
	Into    string // the branch to merge into, such as "main" or "SESSION@main"; empty: main
	Session string // name or ID; empty: that of From or Into, or the one with a branch From

	Default turnstone.Side // decides every conflict that nothing else decides
	// Paths decides the conflicts of a path and of the paths below it; paths are absolute, or
	// "env:NAME", or "cwd".
	Paths map[string]turnstone.Side
	// Markers writes conflict markers into text files; it comes after Paths and before Default.
	Markers bool

	NoFF    bool   // add a turn even if moving the branch is sufficient
	DryRun  bool   // only report what would happen
	Message string // title of the turn; empty: a title that names From and Into
}

// An ExportRequest selects what an export contains.
type ExportRequest struct {
	Session string // name or ID
	// Full includes file contents of the template, for hosts that have another template.
	Full bool
}

// An ImportRequest selects the name of an imported session and the templates to build.
type ImportRequest struct {
	As       string                // another name for the session; empty: its own name
	Build    turnstone.ImportBuild // empty: BuildNone
	Progress func(string)          // gets a short description of each build; may be nil
}

// A TemplateBuild has the options of a template's build.
type TemplateBuild struct {
	// Lock ignores the lock beside the spec, if there is one, and writes a new lock. Only a spec
	// in a file has a lock.
	Lock     bool
	Progress func(string)               // gets a short description of each action; may be nil
	Events   func(turnstone.BuildEvent) // gets the build's progress; may be nil
}

// A TemplateRemoval is one template to remove.
type TemplateRemoval struct {
	Name  string
	Keep  bool // first copy what sessions need of its image into the store
	Force bool // also when sessions need it: their files are damaged then
}

// A TemplatePrune selects the builds that a prune removes.
type TemplatePrune struct {
	Older  time.Duration // only builds that are older; 0: all
	DryRun bool
}
