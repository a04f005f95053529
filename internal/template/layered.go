package template

import (
	"context"
	"io"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Layer is what one spec adds to its base: a tree in the context store that has
// the base's in it. A template with layers has the root image of the template at
// the bottom; sandboxes get the layers as images over it.
type Layer struct {
	Spec  turnstone.Digest `json:"spec"`  // of the spec that was built
	Tree  tree.Ref         `json:"tree"`  // all files, the base's too
	Bytes int64            `json:"bytes"` // of the file contents that it adds
	Files int              `json:"files"` // paths that it adds, changes or removes
}

// A LayerBuilder builds layers in sandboxes. The executor is one.
type LayerBuilder interface {
	// Build runs req's steps in a sandbox of its base and calls commit with what
	// the sandbox left, which is then in the context store; commit's error is
	// returned. Until commit has returned, nothing of the layer is collected.
	Build(ctx context.Context, req LayerRequest, commit func(Layer) error) error
	// Has tells whether the context store has the tree of a layer.
	Has(ctx context.Context, l Layer) (bool, error)
}

// A LayerRequest is one layer to build.
type LayerRequest struct {
	Name  string            // of the template, for messages
	Base  *Template         // built
	Files []File            // put in, owned by root, when the step Put is reached
	Steps []LayerStep       // run one after another as root; the first that fails ends it
	Env   []string          // KEY=VALUE of the steps, beside the base's; none of it is kept
	Shape turnstone.Shape   // of the sandbox
	Temp  map[string][]byte // files that are there only during the build, below /run
	Allow []string          // hosts that the steps may reach, as in a document's "network:"
	Port  net.Addr          // a server on this host that the steps reach as network.Gateway; may be nil
	Log   io.Writer         // gets what the steps print
	// Skip tells of paths that stay out of the layer, absolute; Settle evens out
	// what differs from build to build in one that is kept.
	Skip   func(path string) bool
	Settle func(path string, a *tree.Attr)
	// Say is told what is done, in a few words.
	Say func(string)
}

// A LayerStep is one thing to do in a layer's sandbox.
type LayerStep struct {
	Name   string
	Script string // bash; empty: put the files in
	// Done gets what the step printed on standard output, when it is not nil; at most 4 MiB.
	Done func(stdout []byte) error
	// Failed makes an error of one, given the end of what the step printed.
	Failed func(exit int, tail []byte) error
}
