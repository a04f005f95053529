// Package turn runs turns: it is the place where documents, templates and
// substrates meet.
package turn

import (
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo"
)

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
