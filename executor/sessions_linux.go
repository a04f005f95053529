//go:build !turnstone_client

package executor

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/branchmerge"
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/repo/compare"
	"turnstone.dev/turnstone/internal/repo/copyout"
	"turnstone.dev/turnstone/internal/templatebuild"
)

// Sessions lists all sessions, the most recently used first.
func (x *Executor) Sessions(ctx context.Context) ([]turnstone.SessionInfo, error) {
	return x.repo.Sessions(ctx)
}

// Session returns a session with its turns, branches and tags, by its name or ID. The error is of
// kind KindNotFound if there is no such session.
func (x *Executor) Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error) {
	return x.repo.Session(ctx, nameOrID)
}

// Log returns the turns of a session, newest first: all turns if ref names a session, or else the
// turn that ref names and its ancestors. limit, if positive, bounds the number of turns.
func (x *Executor) Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error) {
	return x.repo.Log(ctx, ref, limit)
}

// Expand returns ref with the label of a session in the place of "-", or of the prefix that a short
// name such as "turn-6" omits. The session is named, by name or ID, or the most recently used
// session if named is empty. Any other ref is returned unchanged. Only programs that serve one
// user need short names; the other methods take the result.
func (x *Executor) Expand(ctx context.Context, ref, named string) (string, error) {
	return x.repo.Expand(ctx, ref, named)
}

// CurrentSession returns the session that named names, or, if named is empty, the most recently
// used session. The error is of kind KindNotFound if there is none.
func (x *Executor) CurrentSession(ctx context.Context, named string) (turnstone.Session, error) {
	return x.repo.CurrentSession(ctx, named)
}

// NoteUse records that the session of ref is the most recently used session, for Expand and
// CurrentSession. Only programs that serve one user need the record. A failure is only logged.
func (x *Executor) NoteUse(ctx context.Context, ref string) { x.repo.NoteUse(ctx, ref) }

// Show returns the description of the turn that ref names.
func (x *Executor) Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error) {
	return x.repo.Show(ctx, ref)
}

// Receipt returns the receipt of the turn that ref names.
func (x *Executor) Receipt(ctx context.Context, ref string) ([]byte, error) {
	return x.repo.Receipt(ctx, ref)
}

// Trace calls each for every line of the trace of the turn that ref names: its commands. A turn that
// an older program kept, and a merge, have no trace: the error is of kind KindNotFound.
func (x *Executor) Trace(ctx context.Context, ref string, each func(turnstone.TraceLine) error) error {
	return x.repo.Trace(ctx, ref, each)
}

// ListFiles calls each for the files of the directory at name, in the state of the turn that ref
// names, or for the file at name. A relative name is below the turn's last working directory. A
// symlink at name is followed. With recursive, ListFiles lists everything below name. An error of
// each ends the listing and is returned.
func (x *Executor) ListFiles(ctx context.Context, ref, name string, recursive bool,
	each func(turnstone.FileInfo) error) error {
	return x.repo.ListFiles(ctx, ref, name, recursive, each)
}

// OpenFile opens the file at name in the state of the turn that ref names. Symlinks are followed
// within the state. Every byte is verified before it is returned. The caller closes the file.
func (x *Executor) OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error) {
	return x.repo.OpenFile(ctx, ref, name)
}

// CopyOut copies the file or directory at name, in the state of the turn that ref names, to dest on
// the host: into dest if dest is a directory or ends in a slash, otherwise under that name. Nothing
// is written outside of dest; missing directories on the way to dest are created. skipped is called
// with each omitted file and the reason; it may be nil. The error is of kind KindExhausted if the
// configured free_space of the state directory would not stay free on the disk with dest.
func (x *Executor) CopyOut(ctx context.Context, ref, name, dest string,
	skipped func(name, why string)) error {
	return copyout.Copy(ctx, x.repo, ref, name, dest, skipped)
}

// PackFiles writes the file or directory at name, in the state of the turn that ref names, to w as a
// tar stream: what CopyOut copies. skipped is called with each omitted or changed file and the
// reason; it may be nil.
func (x *Executor) PackFiles(ctx context.Context, ref, name string, w io.Writer,
	skipped func(name, why string)) error {
	pack, err := x.repo.Pack(ctx, ref, name)
	if err != nil {
		return err
	}
	if skipped == nil {
		skipped = func(string, string) {}
	}
	return pack(w, skipped)
}

// Diff compares the states of two turns.
func (x *Executor) Diff(ctx context.Context, req turnstone.DiffRequest) (
	*turnstone.StateDiff, error) {
	d, err := x.repo.Diff(ctx, req)
	if err == nil && req.Results && req.To != "" {
		d.Results, err = compare.Results(ctx, x.repo, req.From, req.To)
	}
	return d, err
}

// Compare lays the turns that refs name side by side. They are in the session of the first.
func (x *Executor) Compare(ctx context.Context, refs []string) (*turnstone.CompareReport, error) {
	return compare.Turns(ctx, x.repo, refs)
}

// Prepare makes the images that a turn on top of the turn that ref names starts from, so that the
// turn starts faster. Concurrent calls are safe.
func (x *Executor) Prepare(ctx context.Context, ref string) error {
	return x.repo.Prepare(ctx, ref)
}

// Fork creates a branch that begins with the turn that ref names.
func (x *Executor) Fork(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	return x.repo.Fork(ctx, ref, name)
}

// ForkLive is Fork for the newest turn of a branch with a paused machine (lifetime: session): the
// new branch gets a paused clone of that machine, with its processes and its memory.
func (x *Executor) ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	return x.engine.ForkLive(ctx, ref, name)
}

// Tag gives the turn that ref names a permanent name.
func (x *Executor) Tag(ctx context.Context, ref, name string) (turnstone.Tag, error) {
	return x.repo.Tag(ctx, ref, name)
}

// Untag removes a tag of a session.
func (x *Executor) Untag(ctx context.Context, nameOrID, tag string) error {
	return x.repo.Untag(ctx, nameOrID, tag)
}

// CreateSession creates a session without turns, with an ID that the caller has chosen and a name,
// which may be empty. It returns the session that has the ID if there is one.
func (x *Executor) CreateSession(ctx context.Context, id turnstone.SessionID, name string) (
	turnstone.Session, error) {
	return x.repo.CreateSession(ctx, id, name)
}

// Rename gives a session a name.
func (x *Executor) Rename(ctx context.Context, nameOrID, name string) (turnstone.Session, error) {
	return x.repo.Rename(ctx, nameOrID, name)
}

// RemoveSession removes a session, and ends its paused machines. GC frees the space of its turns.
func (x *Executor) RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	return x.engine.RemoveSession(ctx, nameOrID)
}

// SealSessions seals what the state directory has of sessions, each with a key of its own, in order up
// to the first error. It is of kind KindUnavailable if a turn or a sandbox of a session runs, and
// KindInvalid if no keys are configured.
func (x *Executor) SealSessions(ctx context.Context, namesOrIDs []string) (*turnstone.SealReport, error) {
	return x.engine.SealSessions(ctx, namesOrIDs)
}

// ShredSession destroys the key of a sealed session and removes the session, so that nothing of it
// can be read again, here or in a copy of the state directory without its keys. The error is of kind
// KindInvalid if the session is not sealed, or shares its key.
func (x *Executor) ShredSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	return x.engine.ShredSession(ctx, nameOrID)
}

// Memory returns a folder in memory, called elem, for what belongs to a turn of the session called
// nameOrID and is not sealed; "" if the session is not sealed either. A session that does not exist,
// such as the empty name's, is as new sessions are. With a client's key in ctx the folder is removed
// when the key is forgotten.
func (x *Executor) Memory(ctx context.Context, nameOrID, elem string) (string, error) {
	sealed, err := x.keys.Seals()
	if err == nil && nameOrID != "" {
		var s turnstone.Session
		s, err = x.repo.CurrentSession(ctx, nameOrID)
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			err = nil
		} else {
			sealed = s.Domain != ""
		}
	}
	if err != nil || !sealed {
		return "", err
	}
	return x.keys.Memory(ctx, elem)
}

// SweepKeys removes after the idle time of the configuration what a former process had in memory of
// sessions whose keys clients have sent. A program that takes such keys calls it when it starts.
func (x *Executor) SweepKeys() error { return x.keys.Sweep() }

// TakeKey takes a copy of a client's key of 32 bytes, which seals new sessions of the contexts that
// WithKey returns, and opens those that it has sealed. It returns the key's name. The executor
// forgets the key when nothing has used it for the idle time of the configuration. The error is of
// kind KindInvalid if new sessions are not sealed with keys of clients.
func (x *Executor) TakeKey(key []byte) (name string, err error) { return x.keys.Give(key) }

// WithKey returns a context whose new sessions are sealed with the client's key called name. The key
// stays until ctx ends, which it has to. The error is of kind KindUnavailable if the key was
// forgotten.
func (x *Executor) WithKey(ctx context.Context, name string) (context.Context, error) {
	return x.keys.With(ctx, name)
}

// RemoveBranch removes a branch of a session, and ends its paused machine. The turns remain until
// GC removes them.
func (x *Executor) RemoveBranch(ctx context.Context, nameOrID, branch string) error {
	return x.engine.RemoveBranch(ctx, nameOrID, branch)
}

// Merge merges a turn into a branch of its session, three-way: files, environment, working
// directory. With unresolved conflicts Merge stores nothing, and the report lists the conflicts. An
// error means that nothing was stored; an error of kind KindInvalid or KindNotFound means that the
// request is wrong.
func (x *Executor) Merge(ctx context.Context, req MergeRequest) (*turnstone.MergeReport, error) {
	return branchmerge.Merge(ctx, x.repo, branchmerge.Request(req))
}

// Export writes a session as one file to w: its turns, branches and tags, and the data that they
// need. A running turn is omitted. Equal sessions give equal bytes.
func (x *Executor) Export(ctx context.Context, req ExportRequest,
	w io.Writer) (*turnstone.ExportReport, error) {
	return x.engine.Bundles().Export(ctx, bundle.ExportRequest(req), w)
}

// Import reads a session that Export wrote. The file is untrusted: its content is verified before
// the session becomes visible. Import changes nothing if the session exists already.
func (x *Executor) Import(ctx context.Context, req ImportRequest,
	r io.Reader) (*turnstone.ImportReport, error) {
	return x.engine.Bundles().Import(ctx, bundle.ImportRequest(req), r)
}

// GC deletes unreachable data: see GCRequest. It may run concurrently with turns, imports and other
// calls of GC.
func (x *Executor) GC(ctx context.Context, req turnstone.GCRequest) (*turnstone.GCReport, error) {
	return templatebuild.GC(ctx, x.repo, req)
}

// Fsck verifies every object of the store, and the data that the turns of all sessions need. It
// changes nothing except the store's index, which can be rebuilt.
func (x *Executor) Fsck(ctx context.Context) (*turnstone.FsckReport, error) {
	return x.repo.Fsck(ctx)
}

// Usage returns the size of the sessions' data and the disk usage of the state directory.
func (x *Executor) Usage(ctx context.Context) (*turnstone.Usage, error) {
	return x.repo.Usage(ctx)
}

// Verify checks the signed statements of a turn and its ancestors, or of all turns of a session, and
// every object that they need. What does not verify is in the report.
func (x *Executor) Verify(ctx context.Context, req turnstone.VerifyRequest) (
	*turnstone.VerifyReport, error) {
	return chain.VerifyTrusting(ctx, x.repo, req)
}

// VerifyReceipt checks a receipt by itself: it needs no session and no store. name is for messages.
func (x *Executor) VerifyReceipt(ctx context.Context, name string, file []byte,
	trust []string) (*turnstone.VerifyReport, error) {
	return chain.VerifyReceipt(ctx, x.repo.Dir, name, file, trust)
}

// SignTurn adds the caller's signature to the statement of the turn that ref names, which its node
// signed alone, and returns what was signed. The error is of kind KindIntegrity if the turn does not
// verify, KindNotFound if it is not signed or the caller has no key, and KindInvalid if a caller has
// signed it already.
func (x *Executor) SignTurn(ctx context.Context, ref string) (*turnstone.VerifiedTurn, error) {
	return chain.SignTurn(ctx, x.repo, ref)
}

// Heads returns the log of heads of a session, oldest first.
func (x *Executor) Heads(ctx context.Context, nameOrID string) ([]turnstone.LoggedHead, error) {
	cs, err := x.repo.Open(ctx)
	if err != nil {
		return nil, err
	}
	s, err := cs.DB.Find(ctx, nameOrID)
	if err != nil {
		return nil, err
	}
	return chain.Log(ctx, cs, s.ID)
}
