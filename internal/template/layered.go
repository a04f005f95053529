package template

import (
	"context"
	"io"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A LayerBuilder builds layers in sandboxes. The executor is one.
type LayerBuilder interface {
	// Build runs req's steps in a sandbox of its base and calls commit with the sandbox's state,
	// which is then in the context store; Build returns commit's error. Until commit has returned,
	// garbage collection keeps the layer.
	Build(ctx context.Context, req LayerRequest, commit func(turnstone.TemplateLayer) error) error
	// Has reports whether the context store has the tree of a layer.
	Has(ctx context.Context, l turnstone.TemplateLayer) (bool, error)
}

// A LayerRequest is a layer to build.
type LayerRequest struct {
	Name  string              // of the template, for messages
	Base  *turnstone.Template // built
	Files []File              // added, owned by root, at the step Put
	Steps []LayerStep         // run one after another as root; the first failure ends the build
	Env   []string            // KEY=VALUE of the steps, in addition to the base's; not kept
	Shape turnstone.Shape     // of the sandbox
	Temp  map[string][]byte   // files that exist only during the build, below /run
	Allow []string            // hosts that the steps may reach, as in a document's "network:"
	// a server on this host that the steps reach as network.Gateway; may be nil
	Port net.Addr
	Log  io.Writer // gets the steps' output
	// Skip reports absolute paths that stay out of the layer; Settle removes differences between
	// builds from a kept path.
	Skip   func(path string) bool
	Settle func(path string, a *tree.Attr)
	// Say gets a short description of each action.
	Say func(string)
}

// A LayerStep is one action in a layer's sandbox.
type LayerStep struct {
	Name   string
	Script string // bash; empty: add the files
	// Done, if not nil, gets the step's standard output; at most 4 MiB.
	Done func(stdout []byte) error
	// Failed turns a step's error into a better one, from the end of the step's output.
	Failed func(exit int, tail []byte) error
}
