package executor

import (
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/repo/merging"
	"turnstone.dev/turnstone/internal/templatebuild"
)

type (
	ExportReport    = bundle.ExportReport
	ExportRequest   = bundle.ExportRequest
	ImportBuild     = bundle.ImportBuild
	ImportReport    = bundle.ImportReport
	ImportRequest   = bundle.ImportRequest
	MergeOutcome    = merging.MergeOutcome
	MergeReport     = merging.MergeReport
	MergeRequest    = merging.Request
	MergeSide       = merging.MergeSide
	TemplatePrune   = templatebuild.PruneRequest
	TemplatePruned  = templatebuild.TemplatePruned
	TemplateRemoval = templatebuild.Removal
	TemplateStays   = templatebuild.TemplateStays
	TemplateUse     = templatebuild.TemplateUse
	UnbuiltTemplate = bundle.UnbuiltTemplate
)

const (
	MergeDone        = merging.MergeDone
	MergeUpToDate    = merging.MergeUpToDate
	MergeFastForward = merging.MergeFastForward
	MergeConflicts   = merging.MergeConflicts
	BuildNone        = bundle.BuildNone
	BuildKnown       = bundle.BuildKnown
	BuildAll         = bundle.BuildAll
)
