package turn

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/templatebuild"
)

// BuildTemplate builds a template by its name, or the spec at a path, which is registered when the
// build succeeds: see template.Store.Build.
func (x *Executor) BuildTemplate(ctx context.Context, nameOrPath string,
	opts template.BuildOptions) (*template.Template, error) {
	return templatebuild.Build(ctx, x.repo, x.templates(), nameOrPath, opts)
}

// RemoveTemplate removes a template that no session needs, and returns the anonymous sessions that
// were removed with it: see templatebuild.Remove.
func (x *Executor) RemoveTemplate(ctx context.Context,
	req templatebuild.Removal) ([]turnstone.Session, error) {
	return templatebuild.Remove(ctx, x.repo, x.templates(), req)
}

// PruneTemplates removes builds of templates that are no longer known or needed.
func (x *Executor) PruneTemplates(ctx context.Context,
	req templatebuild.PruneRequest) (*templatebuild.TemplatePruned, error) {
	return templatebuild.Prune(ctx, x.repo, x.templates(), req)
}
