package main

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

// templateShape is the machine that a template asks for. Of one that is not known it
// is the default's; who needs the template says so.
func templateShape(h *statedir.Dir, image string) turnstone.Shape {
	shape := turnstone.DefaultShape()
	if image == "" {
		image = executor.DefaultImage
	}
	if spec, err := template.NewStore(h.Path("templates")).Spec(image); err == nil {
		shape = spec.Machine.Shape(shape)
	}
	return shape
}
