package executor

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/repo/copyout"
	"turnstone.dev/turnstone/internal/repo/merging"
)

// Sessions lists the sessions, the one that was used last first.
func (x *Executor) Sessions(ctx context.Context) ([]turnstone.SessionInfo, error) {
	return x.repo.Sessions(ctx)
}

// Session returns all that is known of one session, by its name or ID.
func (x *Executor) Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error) {
	return x.repo.Session(ctx, nameOrID)
}

// Log returns a session's turns, the newest first: all of them when ref names a session, else the
// turn that ref names and its ancestors. limit, if positive, bounds their number.
func (x *Executor) Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error) {
	return x.repo.Log(ctx, ref, limit)
}

// Expand returns ref with the label of the session that was used last in it, or ref itself when it
// does not name that session. named is the name or ID of the session to take in its place.
func (x *Executor) Expand(ctx context.Context, ref, named string) (string, error) {
	return x.repo.Expand(ctx, ref, named)
}

// CurrentSession returns the session that is called named, or, if named is empty, the session that
// was used last. Without such a session the error is of kind KindNotFound.
func (x *Executor) CurrentSession(ctx context.Context, named string) (turnstone.Session, error) {
	return x.repo.CurrentSession(ctx, named)
}

// NoteUse makes the session that ref names the session that was used last. A failure is logged.
func (x *Executor) NoteUse(ctx context.Context, ref string) { x.repo.NoteUse(ctx, ref) }

// Show returns what is known of the turn that ref names.
func (x *Executor) Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error) {
	return x.repo.Show(ctx, ref)
}

// Receipt returns the receipt of the turn that ref names.
func (x *Executor) Receipt(ctx context.Context, ref string) ([]byte, error) {
	return x.repo.Receipt(ctx, ref)
}

// ListFiles calls each with the files of the directory at name, in the state of the turn that ref
// names, or with the file at name. A relative name is below the working directory that the turn
// left. A symlink at name is followed. recursive lists everything below name.
func (x *Executor) ListFiles(ctx context.Context, ref, name string, recursive bool,
	each func(turnstone.FileInfo) error) error {
	return x.repo.ListFiles(ctx, ref, name, recursive, each)
}

// OpenFile opens the file at name in the state of the turn that ref names. Symlinks are followed in
// the state. Every byte is verified before it is read.
func (x *Executor) OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error) {
	return x.repo.OpenFile(ctx, ref, name)
}

// CopyOut copies the file or directory at name, in the state of the turn that ref names, to dest on
// the host: into dest when dest is a directory or ends in a slash, else under that name. Nothing is
// written outside of dest. skipped is told of each file that is left out, and why.
func (x *Executor) CopyOut(ctx context.Context, ref, name, dest string,
	skipped func(name, why string)) error {
	return copyout.Copy(ctx, x.repo, ref, name, dest, skipped)
}

// Diff compares the states of two turns.
func (x *Executor) Diff(ctx context.Context, req turnstone.DiffRequest) (
	*turnstone.StateDiff, error) {
	return x.repo.Diff(ctx, req)
}

// Prepare makes the images that a turn on top of the turn that ref names starts from. It is for the
// background; several calls at one time do no harm.
func (x *Executor) Prepare(ctx context.Context, ref string) error {
	return x.repo.Prepare(ctx, ref)
}

// Fork makes a branch that begins with the turn that ref names.
func (x *Executor) Fork(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	return x.repo.Fork(ctx, ref, name)
}

// ForkLive is Fork for the newest turn of a branch whose machine stays between turns (lifetime:
// session): the new branch gets a clone of that machine, with its processes and its memory, paused
// as it is.
func (x *Executor) ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	return x.engine.ForkLive(ctx, ref, name)
}

// Tag gives the turn that ref names a name that stays with the turn.
func (x *Executor) Tag(ctx context.Context, ref, name string) (turnstone.Tag, error) {
	return x.repo.Tag(ctx, ref, name)
}

// Untag removes a tag of a session.
func (x *Executor) Untag(ctx context.Context, nameOrID, tag string) error {
	return x.repo.Untag(ctx, nameOrID, tag)
}

// Rename gives a session a name.
func (x *Executor) Rename(ctx context.Context, nameOrID, name string) (turnstone.Session, error) {
	return x.repo.Rename(ctx, nameOrID, name)
}

// RemoveSession removes a session, and ends its paused machines. GC frees the space that its turns
// take up.
func (x *Executor) RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	return x.engine.RemoveSession(ctx, nameOrID)
}

// RemoveBranch removes a branch of a session, and ends its paused machine. Its turns stay until GC
// removes them.
func (x *Executor) RemoveBranch(ctx context.Context, nameOrID, branch string) error {
	return x.engine.RemoveBranch(ctx, nameOrID, branch)
}

// Merge merges a turn into a branch of its session, three-way: files, environment, working
// directory. With undecided conflicts it keeps nothing, and the report has them. An error means
// that nothing was kept; of kind Invalid or KindNotFound, that the request is wrong.
func (x *Executor) Merge(ctx context.Context, req MergeRequest) (*turnstone.MergeReport, error) {
	return merging.Merge(ctx, x.repo, merging.Request(req))
}

// Export writes a session as one file to w: its turns, branches and tags, and all that they need. A
// turn that is running is left out. The same session gives the same bytes.
func (x *Executor) Export(ctx context.Context, req ExportRequest,
	w io.Writer) (*turnstone.ExportReport, error) {
	return x.engine.Bundles().Export(ctx, bundle.ExportRequest(req), w)
}

// Import reads a session that Export wrote. The file is untrusted: everything in it is checked
// before the session appears. A session that is here already changes nothing.
func (x *Executor) Import(ctx context.Context, req ImportRequest,
	r io.Reader) (*turnstone.ImportReport, error) {
	return x.engine.Bundles().Import(ctx, bundle.ImportRequest(req), r)
}

// GC deletes unreachable data: see GCRequest. It may run beside turns, imports and other calls of
// GC.
func (x *Executor) GC(ctx context.Context, req turnstone.GCRequest) (*turnstone.GCReport, error) {
	return x.repo.GC(ctx, req)
}

// Fsck verifies every object of the store, and everything that the turns of all sessions need. It
// changes nothing except the store's index, which can be made again.
func (x *Executor) Fsck(ctx context.Context) (*turnstone.FsckReport, error) {
	return x.repo.Fsck(ctx)
}

// Usage adds up what the sessions need, and what the state directory takes up on disk.
func (x *Executor) Usage(ctx context.Context) (*turnstone.Usage, error) {
	return x.repo.Usage(ctx)
}
