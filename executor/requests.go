package executor

import (
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// A Request is one turn to run. A zero field selects the document's value, and then the default.
type Request struct {
	Document *document.Document
	Dir      string // the folder of the document's files, which they cannot leave
	Piped    bool   // Dir is the caller's folder, because the document came through a pipe
	// Defaults are for what the document leaves open, below all other fields. They grant nothing.
	Defaults document.Defaults
	// Grant lists keys of front matter, such as "network". The document's requests under these keys
	// are granted unchanged. The other fields grant their requests.
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
	// NetworkRules are added to the document's rules: see docs/network.md. With Network, the modes
	// (Record, Replay) of NetworkRules replace the document's.
	NetworkRules  *document.NetworkRules
	SecretHeaders []string // "HOST=Name: value", sent only in requests to that host
	Substrate     string   // "auto" or the name of a substrate
	Commands      bool     // list all commands of each step in the receipt

	Session  string             // name or ID; empty: an anonymous session
	Branch   string             // default "main"
	Lifetime turnstone.Lifetime // lifetime of the sandbox
	Home     string             // name of a persistent home directory
	Snapshot document.Snapshot  // the stored part of the machine
	Secrets  []string           // NAME=VALUE, only for the environment of the steps
	// Checkpoint is when the turn keeps what it has done so far.
	Checkpoint turnstone.Checkpoint

	Deterministic *bool          // every run gives the same result: see docs/determinism.md
	Tier          turnstone.Tier // empty: by the substrate; this and the next only if deterministic
	Seed          *uint64        // nil: derived from the document and the parent's state
	Clock         time.Time      // when the turn's clock starts

	// ID is the turn's ID, for a caller that has to know it before the turn starts; empty: a new one.
	ID turnstone.TurnID

	// Remote says that the caller is on another machine: what it asks for is in Document, and the
	// host's configuration alone grants what its own flags would grant here.
	Remote bool
}

// An Observer receives a turn's progress while the turn runs. Its methods are called from several
// goroutines, but one call at a time for each output of a step. A slow observer slows the step
// down.
type Observer interface {
	// Preparing receives a line of text for people: before long operations, such as "building
	// template python", and about events outside of steps, such as a file that was left out.
	Preparing(what string)
	StepStarted(step *document.Step)
	StepOutput(step *document.Step, stream turnstone.Stream, p []byte)
	StepFinished(step *document.Step, report turnstone.StepReport)
}

// ReplayOptions are the options of a replay. All other settings come from the stored turn.
type ReplayOptions struct {
	Secrets   []string // NAME=VALUE: secrets are not stored and must be given again
	Substrate string   // name of a substrate; empty: the substrate of the first run
	// Tier makes the replay deterministic, on a substrate of the tier; empty: as the first run.
	Tier turnstone.Tier
	// Grant is as in Request: a record may be imported, so it grants nothing itself.
	Grant []string
}

// A RangeRequest selects turns to run again, one on the other.
type RangeRequest struct {
	Ref     string // FROM..TO, along the first parents of TO, or one turn
	Options ReplayOptions
	// OnHead runs the turns on the present head of the branch of the first one's parent, as a
	// rebase does, and adds them to the session. Branch is the name of their new branch; empty:
	// replay-N. Without OnHead the new turns are in no session.
	OnHead bool
	Branch string
	// Each is called with each comparison; it may be nil.
	Each func(*turnstone.ReplayReport)
}

// A BisectRequest says what to search.
type BisectRequest struct {
	// Ref is FROM..TO, to find a turn, or one turn, to find a command of it.
	Ref string
	// Command tests the state of a turn: its exit code 0 means good, 125 means that the turn cannot
	// be tested, 1 to 127 mean bad. On and the outputs have no effect. Without Argv, a turn is bad
	// if its replay differs.
	Command CommandRequest
	Options ReplayOptions
	Tell    func(string) // gets a line after each test; may be nil
}

// A CommandRequest is one command to run in a fresh sandbox.
type CommandRequest struct {
	Argv     []string
	Image    string // default "base"
	On       string // the turn whose state, environment and directory the command has; empty: none
	Env      []string
	Cwd      string
	Add, Get []document.Transfer
	Timeout  time.Duration
	Shape    turnstone.Shape        // as in SandboxRequest
	Network  *turnstone.NetworkSpec // rules of its network; nil: the host's
	// HostNetwork selects the host's default in place of Shape.Network.
	HostNetwork bool
	Substrate   string
	Stdin       io.Reader // nil: no input
	Stdout      io.Writer
	Stderr      io.Writer
}

// A ResumeTurnRequest is one interrupted turn to resume. Its other settings are those of the turn.
type ResumeTurnRequest struct {
	Ref           string
	Session       string   // name or ID of the session that the turn must be of; empty: any
	Secrets       []string // NAME=VALUE: secrets are not stored and must be given again
	SecretHeaders []string // "HOST=Name: value": the same
	Grant         []string // as in Request: a record may be imported, so it grants nothing itself
	Commands      bool     // list all commands of the steps that run now in the receipt
	// Network and NetworkRules are as in Request. Without them, the turn's document asks for the
	// network of its first start again.
	Network      *bool
	NetworkRules *document.NetworkRules
	Remote       bool // as in Request
	// Most bounds the turn's machine, and MostTime its time limit: what the caller may use now. A
	// zero field bounds nothing.
	Most     turnstone.Machine
	MostTime time.Duration
}

// A ResumeRequest is one kept machine to start. Its network settings are the caller's.
type ResumeRequest struct {
	Ref  string
	Name string        // name of the sandbox; may be empty
	TTL  time.Duration // lifetime of the sandbox; 0: unlimited
	// Grant, Network and NetworkRules are as in Request; only the rules Allow, Deny and NoHostCA
	// have an effect.
	Grant        []string
	Network      *bool
	NetworkRules *document.NetworkRules
}

// A MergeRequest selects the turns to merge, and resolves conflicts: see docs/merge.md.
type MergeRequest struct {
	// From is the turn to merge: a reference to a turn, or a branch, a tag or a number if the
	// session is named or can be found by the branch.
	From string
	Into string // the branch to merge into, such as "main" or "SESSION@main"; empty: main
	// name or ID; empty: the session of From or Into, or the session with a branch From
	Session string

	Default turnstone.Side // resolves every conflict that no other field resolves
	// Paths resolves the conflicts of a path and of the paths below it; paths are absolute, or
	// "env:NAME", or "cwd".
	Paths map[string]turnstone.Side
	// Markers writes conflict markers into text files. Paths takes precedence over Markers, and
	// Markers over Default.
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
	// AcceptHistory imports a session whose log of heads does not begin with the log of heads
	// that is known here.
	AcceptHistory bool
}

// A TemplateBuild has the options of a template's build.
type TemplateBuild struct {
	// Lock ignores the lock beside the spec, if there is one, and writes a new lock. Only a spec
	// in a file has a lock.
	Lock     bool
	Progress func(string)               // gets a short description of each action; may be nil
	Events   func(turnstone.BuildEvent) // gets the build's progress; may be nil
}

// A TemplatePush is a template to put into a registry.
type TemplatePush struct {
	Template  string       // its name; built
	Reference string       // where to, with a tag
	Progress  func(string) // gets a short description of each action
}

// A TemplateRemoval is one template to remove.
type TemplateRemoval struct {
	Name  string
	Keep  bool // first copy the files that sessions need from its image to the store
	Force bool // remove it even if sessions need it; their files are then damaged
}

// A TemplatePrune selects the builds that a prune removes.
type TemplatePrune struct {
	Older  time.Duration // only builds that are older; 0: all
	DryRun bool
}

// A SandboxRequest is one sandbox to create. Zero fields select the defaults.
type SandboxRequest struct {
	Image string   // default "base"
	Env   []string // KEY=VALUE, for all processes
	// Shape of the machine. In a Shape with other fields, a zero CPUs, Memory or Disk is the
	// template's or the default, and Network false means no network.
	Shape     turnstone.Shape
	Network   *turnstone.NetworkSpec // rules of its network; nil: the host's
	Substrate string                 // "auto" or the name of a substrate
	On        string                 // the turn whose state the sandbox starts from; empty: none
}
