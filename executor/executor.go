// Package executor runs turns: it is the place where documents, templates and
// substrates meet.
package executor

import (
	"context"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/repo/merging"
	"turnstone.dev/turnstone/internal/templatebuild"
	"turnstone.dev/turnstone/internal/turn"
)

type (
	Ask = plan.Ask

	CommandRequest = turn.CommandRequest

	Executor      = turn.Executor
	ExportReport  = bundle.ExportReport
	ExportRequest = bundle.ExportRequest

	Host          = turn.Host
	ImportBuild   = bundle.ImportBuild
	ImportReport  = bundle.ImportReport
	ImportRequest = bundle.ImportRequest

	MergeOutcome = merging.MergeOutcome
	MergeReport  = merging.MergeReport
	MergeRequest = merging.Request
	MergeSide    = merging.MergeSide
	Observer     = turn.Observer
	Options      = turn.Options

	ReplayOptions  = turn.ReplayOptions
	Request        = plan.Request
	ResumeRequest  = turn.ResumeRequest
	Sandbox        = turn.Sandbox
	SandboxRequest = turn.SandboxRequest

	TemplatePrune   = templatebuild.PruneRequest
	TemplatePruned  = templatebuild.TemplatePruned
	TemplateRemoval = templatebuild.Removal
	TemplateStays   = templatebuild.TemplateStays
	TemplateUse     = templatebuild.TemplateUse
	Transfer        = document.Transfer

	UnbuiltTemplate = bundle.UnbuiltTemplate
)

const (
	DefaultImage = plan.DefaultImage

	MergeDone        = merging.MergeDone
	MergeUpToDate    = merging.MergeUpToDate
	MergeFastForward = merging.MergeFastForward
	MergeConflicts   = merging.MergeConflicts
	BuildNone        = bundle.BuildNone
	BuildKnown       = bundle.BuildKnown
	BuildAll         = bundle.BuildAll
)

// Open returns an executor on the state directory that o names. The caller must Close it. An
// error is of kind Invalid where another user could write to the state directory, and of
// kind Unavailable where it cannot be made.
func Open(ctx context.Context, o Options) (*Executor, error) { return turn.Open(ctx, o) }

// Planner returns an executor for Check alone: it makes no state directory.
func Planner(o Options) (*Executor, error) { return turn.Planner(o) }

// CheckScripts asks bash's parser whether it would refuse a step.
func CheckScripts(ctx context.Context, doc *document.Document) error {
	return plan.CheckScripts(ctx, doc)
}

// CheckFront reports what no turn could grant.
func CheckFront(doc *document.Document) error { return plan.CheckFront(doc) }

// CutPath cuts a reference at the path of a file.
func CutPath(arg string) (ref, file string, ok bool) { return turn.CutPath(arg) }

// Asks lists what a document asks for and its caller must grant.
func Asks(doc *document.Document, piped bool, host config.Config) []Ask {
	return plan.Asks(doc, piped, host)
}
