package mcpdoor

import (
	"context"
	"io"
	"net"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// Turns runs turns and reads what they left, such as an executor.Executor or a host. The methods are
// those of executor.Executor with the same name.
type Turns interface {
	Run(ctx context.Context, req executor.Request, obs executor.Observer) (
		*turnstone.TurnReport, error)
	Replay(ctx context.Context, ref string, opts executor.ReplayOptions, obs executor.Observer) (
		*turnstone.ReplayReport, error)
	Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error)
	Receipt(ctx context.Context, ref string) ([]byte, error)
	OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error)
	Diff(ctx context.Context, req turnstone.DiffRequest) (*turnstone.StateDiff, error)
	Compare(ctx context.Context, refs []string) (*turnstone.CompareReport, error)
	Verify(ctx context.Context, req turnstone.VerifyRequest) (*turnstone.VerifyReport, error)
	Fork(ctx context.Context, ref, name string) (turnstone.Branch, error)
	Merge(ctx context.Context, req executor.MergeRequest) (*turnstone.MergeReport, error)
}

// Sandboxes makes and uses sandboxes of sessions, such as a sandboxes.Store or those of a host. The
// methods are those of sandboxes.Store with the same name.
type Sandboxes interface {
	// Shape returns the machine of a sandbox of image, for the values that nobody requests.
	Shape(ctx context.Context, image string, on *bool) (turnstone.Shape, error)
	Create(ctx context.Context, spec sandboxes.Spec, progress func(string)) (sandboxes.Info, error)
	Get(id turnstone.SandboxID) (sandboxes.Info, error)
	Exec(ctx context.Context, id turnstone.SandboxID, cmd sandboxes.Command) (
		wire.ProcessExit, error)
	Commit(ctx context.Context, id turnstone.SandboxID) (*turnstone.TurnReport, error)
	Remove(ctx context.Context, id turnstone.SandboxID) error
	Dial(ctx context.Context, id turnstone.SandboxID) (net.Conn, error)
}

// A Place is where the tools of one connection work: this machine, or a host.
type Place struct {
	Turns     Turns
	Sandboxes Sandboxes
	// Session is the session of calls that name none; empty: a new name.
	Session string
	// Hide removes what a client must not read, such as paths of the host, from the texts of errors;
	// nil: they stay.
	Hide func(string) string
	// Extend sets the time from now to the end of a sandbox; nil: it cannot be extended. The sandboxes
	// of a connection then end soon after it even if nothing can end them any more, such as after the
	// revocation of its token.
	Extend func(ctx context.Context, id turnstone.SandboxID, life time.Duration) error
	// Close frees the place when the connection has ended; nil: nothing to do.
	Close func() error
}
