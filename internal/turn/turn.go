// Package turn runs turns: it is the place where documents, templates and
// substrates meet.
package turn

import (
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
)

// A Request is one turn to run. Values that are zero leave the document's word,
// and then the default, in force.
type Request struct {
	Document *document.Document
	Dir      string // what the document's files: are relative to, and may not leave
	Piped    bool   // Dir is the caller's, and not the document's, which came through a pipe
	// Grant are keys of front matter, of config.GrantKeys: what the document asks for there
	// is granted as it stands. The other fields say what their caller grants by itself.
	Grant   []string
	Image   string
	Env     []string // KEY=VALUE
	Add     []Transfer
	Get     []Transfer
	Timeout time.Duration
	CPUs    int
	Memory  turnstone.Bytes
	Disk    turnstone.Bytes
	Network *bool
	// NetworkRules come beside the document's: see docs/network.md. With Network the mode
	// (Record, Replay) is theirs, and not the document's.
	NetworkRules  *document.NetworkRules
	SecretHeaders []string // "HOST=Name: value", as network.ParseSecretHeader reads them
	Substrate     string   // "auto" or a substrate's name
	Commands      bool     // the receipt lists all commands of each step

	Session  string            // name or ID; empty: an anonymous one
	Branch   string            // default "main"
	Lifetime document.Lifetime // of the sandbox
	Home     string            // a persistent home directory
	Snapshot document.Snapshot // what is kept of the machine
	Secrets  []string          // NAME=VALUE: in the steps' environment, and nowhere else

	replay *replayOf // it repeats another turn, and is in no session
}

// A Transfer copies a file or folder between the host and the sandbox.
type Transfer = sandbox.Transfer

// A Turn is what came of a Request.
type Turn struct {
	ID        turnstone.TurnID       `json:"id"`
	Result    turnstone.Result       `json:"result"`
	Error     string                 `json:"error,omitempty"` // why Result is "error"
	Hint      string                 `json:"hint,omitempty"`
	Kind      turnstone.Kind         `json:"-"` // of Error; empty when there is none
	Substrate string                 `json:"substrate"`
	Isolation string                 `json:"isolation"`
	Machine   string                 `json:"machine,omitempty"` // what it has not got of what was asked for
	Template  turnstone.Digest       `json:"template"`
	Image     string                 `json:"image"`
	Started   time.Time              `json:"started"`
	Duration  time.Duration          `json:"-"`
	Millis    int64                  `json:"duration_ms"`
	Phases    []Phase                `json:"phases"` // where the time went before and after the steps
	Receipt   string                 `json:"receipt"`
	Steps     []turnstone.StepReport `json:"steps"`

	Session  string              `json:"session,omitempty"`  // its name, or its ID when it has none
	Number   int                 `json:"number,omitempty"`   // in the session
	Branch   string              `json:"branch,omitempty"`   // whose newest turn it is
	Diverged bool                `json:"diverged,omitempty"` // another turn came first: the branch is a new one
	Parents  []turnstone.TurnID  `json:"parents,omitempty"`
	Start    string              `json:"start,omitempty"`   // what the sandbox began from
	FSHash   turnstone.Digest    `json:"fs_hash,omitempty"` // of the state it left
	State    turnstone.Digest    `json:"state,omitempty"`   // the object that names the state
	Record   turnstone.Digest    `json:"record,omitempty"`  // the object that names all that is kept of it
	Layer    *repo.LayerInfo     `json:"layer,omitempty"`
	Network  *repo.RecordNetwork `json:"network,omitempty"` // what is kept of it
}

// A Phase is one named stretch of a turn's time.
type Phase struct {
	Name string           `json:"name"`
	Took turnstone.Millis `json:"duration_ms"`
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
