//go:build !turnstone_client

package executor

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/templatebuild"
)

// BuildTemplate builds a template by its name, or the spec at a path, which is registered if the
// build succeeds. A path contains a slash, ends in ".toml", or is ".".
func (x *Executor) BuildTemplate(ctx context.Context, nameOrPath string,
	req TemplateBuild) (*turnstone.Template, error) {
	return templatebuild.Build(ctx, x.repo, x.engine.Templates, nameOrPath,
		template.BuildOptions(req))
}

// EnsureTemplate builds the template or the image called name, unless it is built. The name is never
// a path. If stranger is set, a caller of a server names it: the credentials of this program's user
// are used for an image only if the host's configuration names its registry. progress may be nil.
func (x *Executor) EnsureTemplate(ctx context.Context, name string, stranger bool,
	progress func(string)) (*turnstone.Template, error) {
	facts, err := x.engine.Facts()
	if err != nil {
		return nil, err
	}
	ts := x.engine.TemplatesFor(stranger && facts.StrangersImage(name, x.engine.Templates))
	return templatebuild.Ensure(ctx, x.repo, ts, name, progress)
}

// PushTemplate puts a built template into a registry, with the user's credentials.
func (x *Executor) PushTemplate(ctx context.Context, req TemplatePush) (
	*turnstone.TemplatePushed, error) {
	return templatebuild.Push(ctx, x.repo, x.engine.Templates, templatebuild.PushRequest(req))
}

// RemoveTemplate removes a template that no session needs. It returns the anonymous sessions that
// were removed too because their files were only in the template's image.
func (x *Executor) RemoveTemplate(ctx context.Context,
	req TemplateRemoval) ([]turnstone.Session, error) {
	return templatebuild.Remove(ctx, x.repo, x.engine.Templates, templatebuild.Removal(req))
}

// PruneTemplates removes builds of templates that are unknown and not needed.
func (x *Executor) PruneTemplates(ctx context.Context,
	req TemplatePrune) (*turnstone.TemplatePruned, error) {
	return templatebuild.Prune(ctx, x.repo, x.engine.Templates,
		templatebuild.PruneRequest(req))
}

// Homes lists the persistent home directories.
func (x *Executor) Homes(ctx context.Context) ([]turnstone.HomeInfo, error) {
	return x.engine.Homes().List(ctx)
}

// HasHome returns an error of kind KindNotFound if there is no home of this name. A program
// can thus check several names before it removes the first home.
func (x *Executor) HasHome(ctx context.Context, name string) error {
	return x.engine.Homes().Has(ctx, name)
}

// RemoveHome removes a home that no turn uses.
func (x *Executor) RemoveHome(ctx context.Context, name string) error {
	return x.engine.Homes().Remove(ctx, name)
}
