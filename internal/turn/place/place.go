// Package place gives a turn its place in the tree of its session, and moves the session's branch
// when the turn ends.
package place

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
)

// A Place is a turn's place in the tree of its session. It is immutable.
type Place struct {
	provision.Base // the parent, whose state is the turn's initial state
	Session        turnstone.Session
	Turn           turnstone.Turn
	Replay         bool // the turn is in no session

	// Resumed is the checkpoint that a resumed turn goes on from; nil: the turn is new.
	Resumed *session.Checkpoint

	first bool       // the session was created for this turn
	hold  *repo.Hold // of a replay; may be nil
	keys  *chain.Keys
	link  *chain.Link // nil: not signed yet
}

// A Request describes the requested place of a turn.
type Request struct {
	ID              turnstone.TurnID
	Title           string
	Session, Branch string // empty: the turn gets a new session
	// Replay: the turn repeats another turn, with these parents, and is in no session.
	Replay  bool
	Parents []turnstone.TurnID
	Number  int                // of the replay; 0: none
	Domain  turnstone.DomainID // of a replay
	Hold    *repo.Hold         // keeps the replay, so that others can start from it; nil: it is not kept
	Repo    *repo.Repo         // has the keys that sign the turn
	// Before is called with the turn's domain before the turn is in its session; nil: it is not. A
	// replay has none.
	Before func(d turnstone.DomainID)
	// On is the turn whose state the turn starts from, "" for the template; nil: the branch's head.
	On *turnstone.TurnID
}

// Take gives a turn its place and its number, before anything is started. A turn without a session
// gets a new session.
func Take(ctx context.Context, cs *repo.ContextStore, req Request) (*Place, error) {
	at := &Place{Base: provision.Base{Context: cs}}
	var err error
	if req.Replay {
		at.Replay, at.Turn = true, turnstone.Turn{ID: req.ID, Parents: req.Parents,
			Kind: turnstone.TurnKindRun, Title: req.Title, Number: req.Number,
			Status: turnstone.TurnDone, Domain: req.Domain}
		at.hold = req.Hold
		if at.Context, err = cs.In(ctx, req.Domain); err != nil {
			return nil, err
		}
		return at, at.readParent(ctx)
	}
	// First: it may ask for a passphrase, and nothing has started.
	if at.keys, err = chain.Open(ctx, req.Repo.Dir, cs, req.Repo.Passphrase); err != nil {
		return nil, err
	}
	for n := 0; ; n++ {
		if err = at.begin(ctx, cs, req); err == nil {
			break
		}
		// Another turn created the session, could not start, and removed it meanwhile.
		if turnstone.KindOf(err) != turnstone.KindNotFound || at.Session.ID == "" || at.first || n > 2 {
			return nil, err
		}
	}
	at.Session.ID = at.Turn.Session
	if at.Context, err = cs.In(ctx, at.Turn.Domain); err == nil {
		err = at.readParent(ctx)
	}
	if err != nil {
		at.Context = cs
		at.Abandon(ctx)
		return nil, err
	}
	return at, nil
}

// begin finds the session, or creates it, and stores the turn in it.
func (at *Place) begin(ctx context.Context, cs *repo.ContextStore, req Request) (err error) {
	at.Session, at.first = turnstone.Session{}, false
	switch {
	case req.Session == "":
	case req.Branch != plan.DefaultBranch:
		// A new session has only the branch main. An unknown branch must not create a session.
		at.Session, err = cs.DB.Find(ctx, req.Session)
	default:
		at.Session, at.first, err = cs.DB.EnsureNew(ctx, req.Session)
	}
	if err != nil {
		return err
	}
	at.Turn, err = cs.DB.Start(ctx, session.StartTurn{ID: req.ID, Session: at.Session.ID,
		Branch: req.Branch, Parent: req.On, Kind: turnstone.TurnKindRun, Title: req.Title,
		Before: req.Before})
	if err != nil && at.first {
		ctx := context.WithoutCancel(ctx)
		if cs.DB.RemoveEmpty(ctx, at.Session.ID) == nil {
			_ = cs.Discard(ctx, at.Session.Domain) // or the next gc
		}
	}
	return err
}

// Resume gives an interrupted turn its place again. Of several callers one succeeds, in this and in
// other processes: see session.DB.Reopen.
func Resume(ctx context.Context, cs *repo.ContextStore, of *repo.Repo, id turnstone.TurnID) (
	*Place, error) {
	t, err := cs.DB.Turn(ctx, id)
	if err != nil {
		return nil, err
	}
	if cs, err = cs.In(ctx, t.Domain); err != nil { // nothing has started
		return nil, err
	}
	at := &Place{Base: provision.Base{Context: cs}}
	if at.keys, err = chain.Open(ctx, of.Dir, cs, of.Passphrase); err != nil {
		return nil, err
	}
	if at.Turn, at.Resumed, err = cs.DB.Reopen(ctx, id); err != nil {
		return nil, err
	}
	if at.Session, err = cs.DB.Find(ctx, string(at.Turn.Session)); err == nil {
		err = at.readParent(ctx)
	}
	if err != nil {
		at.Abandon(ctx)
		return nil, err
	}
	return at, nil
}

// OfCheckpoint returns the base that the checkpoint c of the turn t is.
func OfCheckpoint(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn,
	c *session.Checkpoint) (provision.Base, error) {
	t = c.As(t)
	t.Status, t.Result = turnstone.TurnDone, turnstone.ResultError
	return provision.On(ctx, cs, &t)
}

func (at *Place) readParent(ctx context.Context) error {
	id := at.Turn.Parent()
	if id == "" {
		return nil
	}
	parent, err := at.Context.Turn(ctx, id)
	if err != nil {
		return err
	}
	at.Base, err = provision.On(ctx, at.Context, &parent)
	return err
}

// Below returns the values that the plan of a turn at this place inherits; nil: the turn starts
// from its template.
func (at *Place) Below() *plan.Below { return at.Base.Below(at.Session) }

// Abandon removes the place of a turn that does not start, with a session that was created for it. A
// resumed turn is interrupted again.
func (at *Place) Abandon(ctx context.Context) {
	if at.Resumed != nil {
		_ = at.Finish(context.WithoutCancel(ctx), Kept{}, turnstone.ResultError, "", "", nil)
		return
	}
	if at.Replay {
		return
	}
	ctx = context.WithoutCancel(ctx)
	abandon := at.Context.DB.Abandon
	if at.first {
		abandon = at.Context.DB.AbandonFirst
	}
	if abandon(ctx, at.Turn.ID) == nil {
		_ = at.Context.Discard(ctx, at.Turn.Domain) // or the next gc
	}
}

// Keep replaces the turn's checkpoint by its first steps, whose last has the number step. The
// objects record and state must be durable. kept is for sealed sessions.
func (at *Place) Keep(ctx context.Context, kept Kept, record, state turnstone.Digest,
	step int) error {
	c := session.Checkpoint{Turn: at.Turn.ID, Record: record, State: state, Step: step,
		Needs: at.needs(kept.Batch)}
	if at.onTemplate() {
		c.Base = kept.Base
	}
	return at.Context.DB.SetCheckpoint(ctx, c)
}

// Lock determines the branch that will end with this turn, so that the receipt can name it, and
// prevents others from moving that branch until unlock is called. If another turn ended first, the
// turn has diverged, and its branch is new.
func (at *Place) Lock(ctx context.Context, dir *statedir.Dir, asked string) (branch string,
	diverged bool, unlock func(), err error) {
	unlock, err = at.Context.DB.LockHeads(ctx, dir.Path("leases"), at.Session.ID)
	if err != nil {
		return "", false, nil, err
	}
	branch, diverged, err = at.Context.DB.Landing(ctx, at.Turn.ID, asked, at.head())
	if err != nil {
		unlock()
		return "", false, nil, err
	}
	return branch, diverged, unlock, nil
}

// Running returns a context for the turn's work: see session.DB.Running.
func (at *Place) Running(ctx context.Context) (context.Context, context.CancelFunc) {
	if at.Replay {
		return ctx, func() {}
	}
	return at.Context.DB.Running(ctx, at.Turn.ID)
}

// head is the turn that the branch must end with if this turn is the next.
func (at *Place) head() *turnstone.TurnID {
	if at.Parent == nil {
		return nil
	}
	return &at.Parent.ID
}

// Sign signs the turn with its record, which is the object record, and puts the envelope into batch.
// fs is the FS hash of its state, if it left one. Sign returns the receipt text with its evidence.
// A replay is in no session, and not signed.
func (at *Place) Sign(ctx context.Context, batch *store.Batch, rec *turnstone.TurnRecord,
	record, fs turnstone.Digest, text []byte) ([]byte, error) {
	if at.Replay {
		return text, nil
	}
	l, err := at.keys.Sign(ctx, at.Context, batch, at.Turn, rec, record, fs)
	if err != nil {
		return text, err
	}
	at.link = l
	return l.Attach(text), nil
}

// Kept is what was stored of a turn.
type Kept struct {
	Batch *store.Batch      // nil: nothing
	Base  turnstone.TreeRef // the tree below its sandbox's disk
}

func (at *Place) needs(b *store.Batch) []turnstone.Digest {
	if b == nil {
		return nil
	}
	return at.Context.Needs(b)
}

// onTemplate reports whether a sealed turn's machine lies on a template. A resumed one lies on its
// checkpoint, and its template was noted with that.
func (at *Place) onTemplate() bool {
	return at.State == nil && (at.Resumed == nil || at.Resumed.Step == 0) && at.Context.Sealed()
}

// Finish ends the turn with its result, its record, its state and its use of a home, which may be
// nil. An empty state moves no branch. kept is for sealed sessions.
func (at *Place) Finish(ctx context.Context, kept Kept, result turnstone.Result, record,
	state turnstone.Digest, home *session.HomeUse) error {
	if at.Replay {
		if at.hold == nil || state == "" {
			return nil
		}
		t := at.Turn
		t.Result, t.Record, t.State = result, record, state
		return at.hold.Add(t, at.needs(kept.Batch))
	}
	end := session.Finish{Turn: at.Turn.ID, Result: result, Record: record, State: state,
		MoveBranch: state != "", ExpectedHead: at.head(), Home: home,
		Needs: at.needs(kept.Batch)}
	if state != "" && at.onTemplate() {
		end.Base = kept.Base
	}
	if record != "" && at.link != nil {
		end.Statement, end.Envelope = at.link.Statement, at.link.Envelope
	}
	_, _, err := at.Context.DB.Finish(ctx, end)
	return err
}
