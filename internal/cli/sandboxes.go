package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/platform"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// Sandboxes are the sandboxes that a command uses, such as those of a sandboxes.Store, whose methods
// have the same meaning and the same errors. They are safe for concurrent use.
type Sandboxes interface {
	SandboxRecords
	SandboxMaker
	SandboxCommands
	SandboxFiles
	// Expose forwards the connections of l to a TCP port of a sandbox, and closes l.
	Expose(ctx context.Context, id turnstone.SandboxID, port uint16, l net.Listener,
		failed func(error)) error
	// Dial opens a connection of the wire to a sandbox.
	Dial(ctx context.Context, id turnstone.SandboxID) (net.Conn, error)
}

// SandboxRecords finds and ends sandboxes.
type SandboxRecords interface {
	List(ctx context.Context) ([]sandboxes.Info, error)
	Get(id turnstone.SandboxID) (sandboxes.Info, error)
	Find(ctx context.Context, ref string) (sandboxes.Info, error)
	// Resolve returns the ID of what Find returns. An ID may be that of no sandbox.
	Resolve(ctx context.Context, ref string) (turnstone.SandboxID, error)
	Stop(ctx context.Context, id turnstone.SandboxID) error
	Remove(ctx context.Context, id turnstone.SandboxID) error
}

// SandboxTurns are what Sandboxes can also do if they have sandboxes of sessions.
type SandboxTurns interface {
	Commit(ctx context.Context, id turnstone.SandboxID) (*turnstone.TurnReport, error)
	Discard(ctx context.Context, id turnstone.SandboxID) error
}

// A SandboxExtender is what Sandboxes can also do.
type SandboxExtender interface {
	// Extend sets the time from now to the end of a sandbox.
	Extend(ctx context.Context, id turnstone.SandboxID, life time.Duration) error
}

// A SandboxMaker makes sandboxes.
type SandboxMaker interface {
	// Shape returns the machine of a sandbox of image, for the values that nobody requests. If on is
	// not nil, it says whether the machine has a network.
	Shape(ctx context.Context, image string, on *bool) (turnstone.Shape, error)
	Create(ctx context.Context, spec sandboxes.Spec, progress func(string)) (sandboxes.Info, error)
	Fork(ctx context.Context, id turnstone.SandboxID, f sandboxes.Fork,
		ready func(sandboxes.Info)) ([]sandboxes.Info, error)
}

// SandboxCommands runs commands in sandboxes.
type SandboxCommands interface {
	Exec(ctx context.Context, id turnstone.SandboxID, cmd sandboxes.Command) (
		wire.ProcessExit, error)
	StartDetached(ctx context.Context, id turnstone.SandboxID, cmd sandboxes.Command) (
		string, error)
	Attach(ctx context.Context, id turnstone.SandboxID, process string, stdout, stderr io.Writer,
		lost func(stream wire.ProcessStream, bytes int64)) (wire.ProcessExit, error)
	Processes(ctx context.Context, id turnstone.SandboxID) ([]wire.ProcessProcessInfo, error)
}

// SandboxFiles copies files into sandboxes and out of them.
type SandboxFiles interface {
	Stat(ctx context.Context, id turnstone.SandboxID, path string) (wire.FileSystemFileInfo, error)
	CopyIn(ctx context.Context, id turnstone.SandboxID, what sandboxes.Copy) error
	CopyOut(ctx context.Context, id turnstone.SandboxID, what sandboxes.Copy) error
	Unpack(ctx context.Context, id turnstone.SandboxID, what sandboxes.Copy, r io.Reader) error
	Pack(ctx context.Context, id turnstone.SandboxID, what sandboxes.Copy, w io.Writer) error
	WriteFile(ctx context.Context, id turnstone.SandboxID, path string, r io.Reader) error
	ReadFile(ctx context.Context, id turnstone.SandboxID, path string, w io.Writer) error
}

// WithSandboxes is Do with the sandboxes.
func (a *App) WithSandboxes(f func(ctx context.Context, s Sandboxes) error) error {
	s, err := a.OpenSandboxes(context.Background())
	if err != nil {
		return err
	}
	return a.Do(func(ctx context.Context) error { return f(ctx, s) })
}

// OpenSandboxes returns the sandboxes that commands use: those of the server that commands use, or
// those of this machine.
func (a *App) OpenSandboxes(ctx context.Context) (Sandboxes, error) {
	server, err := a.Server(ctx)
	if err != nil {
		return nil, err
	}
	if server != nil {
		return server.AllSandboxes(), nil
	}
	if !platform.Sandboxes {
		return nil, platform.NoSandboxes("sandbox")
	}
	h, err := a.StateDir()
	if err != nil {
		return nil, err
	}
	s := a.Store(h)
	return &localSandboxes{Store: s, files: files{s.Access()}, app: a}, nil
}

// Store returns the sandboxes of h, whose holder is this program, by a path that an update of its
// file does not change.
func (a *App) Store(h *statedir.Dir) *sandboxes.Store {
	s := sandboxes.NewStore(h.Root)
	s.Holder = holder
	return s
}

// holder keeps sandboxes. The path is that of the running program, even if its file is replaced.
var holder = sandboxes.Holder{Path: "/proc/self/exe", Args: []string{"turn", "sandbox", "hold"}}

// files has the methods of sandboxes.Access that sandboxes.Store has not: the Store's are nearer.
type files struct{ *sandboxes.Access }

// localSandboxes are the sandboxes of this machine.
type localSandboxes struct {
	*sandboxes.Store
	files
	app *App
}

// Resolve implements SandboxRecords.
func (l *localSandboxes) Resolve(ctx context.Context, ref string) (turnstone.SandboxID, error) {
	i, err := l.Find(ctx, ref)
	return i.ID, err
}

// Extend implements SandboxExtender.
func (l *localSandboxes) Extend(ctx context.Context, id turnstone.SandboxID, life time.Duration) error {
	c, err := l.Control(ctx, id)
	if err != nil {
		return err
	}
	return errors.Join(c.SetTTL(ctx, life), c.Close())
}

// Shape implements SandboxMaker.
func (l *localSandboxes) Shape(ctx context.Context, image string, on *bool) (
	shape turnstone.Shape, err error) {
	x, err := l.app.OpenLocal(ctx)
	if err != nil {
		return shape, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	shape = x.Shape(image)
	switch {
	case on != nil:
		shape.Network = *on
	case shape.Network:
		if shape.Network, err = x.DefaultNetwork(); err != nil {
			return shape, Fail(err)
		}
	}
	return shape, nil
}
