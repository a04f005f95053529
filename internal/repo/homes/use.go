package homes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// maxBytes is the largest size of a home.
const maxBytes turnstone.Bytes = 32 << 30

// A Request is one turn's use of a home.
type Request struct {
	Name    string
	Turn    turnstone.TurnID
	Timeout time.Duration // the turn's limit, which also bounds waiting for another user
	Room    func() error  // an error if the host's disk is nearly full; nil: no check
	// Repair replays the journal of the disk at path, which an older program left; nil: nobody can.
	Repair func(ctx context.Context, path string) error
}

// A Home is a home in use. A nil Home is none. It is not safe for concurrent use.
type Home struct {
	Name  string
	Began turnstone.TreeRef // its tree when the turn began
	Ended turnstone.TreeRef // after Leave
	// Recorded: the turn repeats another, begins with the tree that the other began with, and changes
	// no home.
	Recorded bool

	cs    *repo.ContextStore
	turn  turnstone.TurnID
	owner string
	path  string      // where it is in the sandbox; after Onto
	bytes int64       // of Ended, if it is set; otherwise of Began
	fresh bool        // there was no such home
	lock  lease.Lease // nil for one that is Recorded
}

// Open returns a home for a turn, and holds it until Close: only one turn at a time uses it. A
// missing home is empty, and exists from the turn's end. progress receives the name of the user that
// Open waits for.
func (h *Homes) Open(ctx context.Context, req Request, progress func(string)) (_ *Home, err error) {
	if err := turnstone.CheckName("home", req.Name); err != nil {
		return nil, err
	}
	cs, err := h.repo.Open(ctx)
	if err != nil {
		return nil, err
	}
	lock, err := req.lock(ctx, h.usersOf(cs, session.Owner(ctx), req.Name), progress)
	if err != nil {
		return nil, err
	}
	home := &Home{Name: req.Name, cs: cs, turn: req.Turn, owner: session.Owner(ctx), lock: lock}
	defer func() {
		if err != nil {
			home.Close()
		}
	}()
	if h.hasDisk(ctx, req.Name) {
		if err := h.convert(ctx, cs, req, progress); err != nil {
			return nil, err
		}
	}
	have, ok, err := cs.DB.Home(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	if home.Began, home.bytes = have.Tree, have.Bytes; !ok {
		home.fresh = true
		home.Began, err = emptyRef(ctx)
	}
	return home, err
}

// emptyRef returns the tree of a new home.
func emptyRef(ctx context.Context) (turnstone.TreeRef, error) {
	h := tree.NewHasher()
	root, err := tree.Empty(ctx, h)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	return tree.PutRoot(ctx, h, root)
}

// Recorded returns the home that the turn of used, as that turn began with it, for a turn that
// repeats it; nil if the turn used none of the context's owner, or if its state is no longer known.
func (h *Homes) Recorded(ctx context.Context, of turnstone.TurnID) (*Home, error) {
	cs, err := h.repo.Open(ctx)
	if err != nil {
		return nil, err
	}
	u, ok, err := cs.DB.HomeUse(ctx, of)
	if err != nil || !ok {
		return nil, err
	}
	return &Home{Name: u.Name, Began: u.Began, Recorded: true, cs: cs, owner: u.Owner}, nil
}

// Close releases the home.
func (h *Home) Close() {
	if h != nil && h.lock != nil {
		h.lock.Release()
	}
}

// Leave takes the home out of result, a tree that began as the home on the tree base, and returns
// result as if there had been no home. It sets Ended.
func (h *Home) Leave(ctx context.Context, w tree.Writer, result, base turnstone.TreeRef) (
	turnstone.TreeRef, error) {
	fail := func(kind turnstone.Kind, hint, format string, args ...any) error {
		return turnstone.Errorf(op, kind, "home "+h.Name, format, args...).WithHint(hint)
	}
	if _, err := h.began(ctx, w); err != nil {
		return turnstone.TreeRef{}, err
	}
	root, err := tree.Sub(ctx, w, result, h.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return turnstone.TreeRef{}, fail(turnstone.KindInvalid,
			"move or remove the files in it, not the directory itself",
			"%s is no directory at the end of the turn", h.path)
	}
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	ended, err := tree.PutRoot(ctx, w, root)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	bytes := h.bytes
	for c, err := range tree.Diff(ctx, w, h.Began, ended) {
		if err != nil {
			return turnstone.TreeRef{}, err
		}
		if c.Old != nil {
			bytes -= c.Old.Size
		}
		if c.New != nil {
			bytes += c.New.Size
		}
	}
	if bytes > int64(maxBytes) && bytes > h.bytes && !h.Recorded {
		return turnstone.TreeRef{}, fail(turnstone.KindExhausted,
			"remove files that later turns do not need", "it would have %s, and %s is the most",
			turnstone.Bytes(bytes), maxBytes)
	}
	h.Ended, h.bytes = ended, bytes
	return tree.Ungraft(ctx, w, result, base, h.path)
}

// began returns the tree that the turn began with. The tree of a new home is put.
func (h *Home) began(ctx context.Context, w tree.Grafter) (*tree.Root, error) {
	if !h.fresh {
		return tree.GetRoot(ctx, w, h.Began)
	}
	root, err := tree.Empty(ctx, w)
	if err == nil {
		_, err = tree.PutRoot(ctx, w, root)
	}
	return root, err
}

// Use returns what the end of the turn records; nil: nothing. Without kept, the home stays as it
// was.
func (h *Home) Use(kept bool) *session.HomeUse {
	if h == nil || h.Recorded || !kept && h.fresh {
		return nil
	}
	u := &session.HomeUse{Turn: h.turn, Owner: h.owner, Name: h.Name, Began: h.Began,
		Ended: h.Began, Bytes: h.bytes, New: h.fresh, Lease: h.lock}
	if kept {
		u.Ended = h.Ended
	}
	return u
}

// Describe returns the home of a turn as its report has it; nil: none.
func (h *Home) Describe(kept bool) *turnstone.HomeUse {
	if h == nil {
		return nil
	}
	u := &turnstone.HomeUse{Name: h.Name, Began: h.Began}
	if kept && h.Ended.Root != "" {
		u.Ended = &h.Ended
	}
	return u
}

// String returns the home's name, for messages.
func (h *Home) String() string { return fmt.Sprintf("home %s", h.Name) }
