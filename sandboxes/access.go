package sandboxes

import (
	"cmp"
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes/access"
	"turnstone.dev/turnstone/wire"
)

type (
	// A Command is a process to run in a sandbox.
	Command = access.Command
	// A Copy is a copy of files into a sandbox, or out of it.
	Copy = access.Copy
	// An Access runs commands and copies files in sandboxes.
	Access = access.Access
)

// Access returns what uses connections to the sandboxes of s: more than the methods of s.
func (s *Store) Access() *access.Access {
	return &access.Access{
		Open: func(ctx context.Context, id turnstone.SandboxID) (io.ReadWriteCloser, error) {
			return s.Dial(ctx, id)
		},
		Info: func(_ context.Context, id turnstone.SandboxID) (access.Sandbox, error) {
			i, err := s.read(id)
			return i.access(), err
		},
	}
}

// access returns what an access.Access has to know.
func (i Info) access() access.Sandbox {
	a := access.Sandbox{Title: i.Title(), Workdir: i.Workdir, User: i.User,
		Capacity: i.Shape.Disk + i.TemplateSize}
	if i.State.Final() {
		a.Ended = string(i.State) + ": " + cmp.Or(i.Reason, "the reason is unknown")
	}
	return a
}

// Exec is Access.Exec.
func (s *Store) Exec(ctx context.Context, id turnstone.SandboxID, cmd Command) (wire.ProcessExit, error) {
	return s.Access().Exec(ctx, id, cmd)
}

// StartDetached is Access.StartDetached.
func (s *Store) StartDetached(ctx context.Context, id turnstone.SandboxID, cmd Command) (string, error) {
	return s.Access().StartDetached(ctx, id, cmd)
}

// Processes is Access.Processes.
func (s *Store) Processes(ctx context.Context, id turnstone.SandboxID) ([]wire.ProcessProcessInfo, error) {
	return s.Access().Processes(ctx, id)
}

// Attach is Access.Attach.
func (s *Store) Attach(ctx context.Context, id turnstone.SandboxID, process string, stdout,
	stderr io.Writer, lost func(stream wire.ProcessStream, bytes int64)) (wire.ProcessExit, error) {
	return s.Access().Attach(ctx, id, process, stdout, stderr, lost)
}

// Upload is Access.Upload.
func (s *Store) Upload(ctx context.Context, id turnstone.SandboxID, src, dest string) error {
	return s.Access().Upload(ctx, id, src, dest)
}

// Download is Access.Download.
func (s *Store) Download(ctx context.Context, id turnstone.SandboxID, path, dest string, tell func(string)) error {
	return s.Access().Download(ctx, id, path, dest, tell)
}

// WriteFile is Access.WriteFile.
func (s *Store) WriteFile(ctx context.Context, id turnstone.SandboxID, path string, r io.Reader) error {
	return s.Access().WriteFile(ctx, id, path, r)
}

// ReadFile is Access.ReadFile.
func (s *Store) ReadFile(ctx context.Context, id turnstone.SandboxID, path string, w io.Writer) error {
	return s.Access().ReadFile(ctx, id, path, w)
}

// client opens a connection for a single task.
func (s *Store) client(ctx context.Context, id turnstone.SandboxID) (*wire.Client, error) {
	return s.Access().Client(ctx, id)
}
