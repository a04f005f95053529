package executor

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
)

// An Executor runs turns with the state of one home. It is safe for concurrent use.
type Executor struct {
	home *home.Home
}

// New returns an executor on h.
func New(h *home.Home) *Executor { return &Executor{home: h} }

// Run runs one turn and returns it with its receipt. An error without a Turn
// means that nothing was started: of kind Invalid or NotFound, that the request
// is wrong. A turn that began always comes back, its Result telling how it ended;
// when ctx is cancelled it is "error" and the receipt says at which step.
func (x *Executor) Run(ctx context.Context, req Request, obs Observer) (*Turn, error) {
	panic("in work")
}

// A CommandRequest is one command to run in a fresh sandbox.
type CommandRequest struct {
	Argv      []string
	Image     string // default "base"
	Env       []string
	Cwd       string
	Add, Get  []Transfer
	Shape     turnstone.Shape
	Substrate string
	Stdin     io.Reader // nil: nothing
	Stdout    io.Writer
	Stderr    io.Writer
}

// Exec runs one command and returns its exit code, 128+n when signal n ended it.
func (x *Executor) Exec(ctx context.Context, req CommandRequest, preparing func(string)) (int, error) {
	panic("in work")
}
