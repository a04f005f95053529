// Package turn runs a planned turn from its place in a session to its commit: it starts or resumes
// the sandbox, runs the steps, records the network, collects the files and writes the receipt.
package turn

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

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

// silent is an Observer that ignores all calls.
type silent struct{}

func (silent) Preparing(string)                                    {}
func (silent) StepStarted(*document.Step)                          {}
func (silent) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (silent) StepFinished(*document.Step, turnstone.StepReport)   {}
