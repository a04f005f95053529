// Package turn runs turns: it is the place where documents, templates and
// substrates meet.
package turn

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

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

// silent is an Observer that ignores what it is told.
type silent struct{}

func (silent) Preparing(string)                                    {}
func (silent) StepStarted(*document.Step)                          {}
func (silent) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (silent) StepFinished(*document.Step, turnstone.StepReport)   {}
