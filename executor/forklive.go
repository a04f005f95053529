package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/session"
)

// ForkLive is Fork for the newest turn of a branch whose machine stays between
// turns (lifetime: session): the new branch gets a clone of that machine, with its
// processes and its memory, paused as it is.
func (x *Executor) ForkLive(ctx context.Context, ref, name string) (session.Branch, error) {
	cs, t, err := x.resolve(ctx, ref)
	if err != nil {
		return session.Branch{}, err
	}
	from, err := x.heldAt(ctx, t)
	if err != nil {
		return session.Branch{}, err
	}
	defer from.lock.Release()
	clones, err := from.store.Fork(ctx, from.Sandbox, sandboxes.Fork{Count: 1, TTL: heldTime}, nil)
	if err != nil {
		return session.Branch{}, err
	}
	to := &held{Sandbox: clones[0].ID, Turn: t.ID, Base: from.Base, x: x, store: from.store,
		path: x.heldPath(t.Session, name)}
	b, err := to.adopt(ctx, cs, t, name)
	if err != nil {
		to.remove(ctx)
	}
	return b, err
}

// adopt pauses the clone and makes it the machine of a new branch.
func (h *held) adopt(ctx context.Context, cs *contextStore, t session.Turn, name string) (b session.Branch, err error) {
	if h.lock, err = home.Acquire(ctx, h.path+".lock", nil); err != nil {
		return b, err
	}
	defer h.lock.Release()
	if h.ctl, err = h.store.Control(ctx, h.Sandbox); err != nil {
		return b, err
	}
	if _, err = h.ctl.Pause(ctx); err != nil {
		return b, err
	}
	if b, err = cs.db.Fork(ctx, t, name); err != nil {
		return b, err
	}
	return b, h.write()
}

func (x *Executor) heldPath(s turnstone.SessionID, branch string) string {
	return filepath.Join(x.home.Path("machines"), string(s)+"-"+branch+".json")
}

// heldAt returns the paused machine that has the state of turn t. Its lock is held.
func (x *Executor) heldAt(ctx context.Context, t session.Turn) (*held, error) {
	none := &turnstone.Error{Op: "executor.fork", Kind: turnstone.NotFound, Subject: fmt.Sprintf("turn %d", t.Number),
		Err: errors.New("no machine stands on it"), Hint: "a machine stays after turns with lifetime: session, on the newest turn of their branch"}
	h := &held{x: x, store: sandboxes.NewStore(x.home), path: x.heldPath(t.Session, t.Branch)}
	if _, err := os.Stat(h.path); err != nil {
		return nil, none
	}
	var err error
	if h.lock, err = home.Acquire(ctx, h.path+".lock", nil); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(h.path)
	if err == nil {
		err = json.Unmarshal(b, h)
	}
	if err != nil || h.Turn != t.ID {
		h.lock.Release()
		return nil, none
	}
	return h, nil
}
