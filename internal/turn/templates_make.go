package turn

import (
	"context"

	"turnstone.dev/turnstone/internal/template"
)

// BuildTemplate builds a template by its name, or the spec at a path, which is
// registered when the build was good: see template.Store.Build.
func (x *Executor) BuildTemplate(ctx context.Context, nameOrPath string, opts template.BuildOptions) (*template.Template, error) {
	t, err := x.templates().Build(ctx, nameOrPath, opts)
	if err == nil {
		err = x.repo.IndexTemplate(ctx, t)
	}
	return t, err
}
