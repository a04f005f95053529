package executor

import (
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/repo/merging"
	"turnstone.dev/turnstone/internal/templatebuild"
)

type (
	ExportRequest = bundle.ExportRequest

	ImportRequest = bundle.ImportRequest

	MergeRequest = merging.Request

	TemplatePrune = templatebuild.PruneRequest

	TemplateRemoval = templatebuild.Removal

	TemplateUse = templatebuild.TemplateUse
)
