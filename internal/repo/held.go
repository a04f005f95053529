package repo

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
)

// A Hold keeps turns that are in no session, so that other turns can start from them: GC of any
// process keeps their data, and Turn finds them. It ends with Release, or with its process. It is
// safe for concurrent use.
type Hold struct {
	cs    *ContextStore
	batch *store.Batch // sweeps of other machines do not see the files; nil: there are none
	mu    sync.Mutex
	turns map[turnstone.TurnID]*statedir.Lock
}

// Hold returns an empty hold. It begins before the batches of its turns.
func (cs *ContextStore) Hold(ctx context.Context) (_ *Hold, err error) {
	h := &Hold{cs: cs, turns: map[turnstone.TurnID]*statedir.Lock{}}
	if cs.DB.Shared() {
		h.batch, err = cs.Store.Begin(ctx)
	}
	return h, err
}

// A heldTurn is a held turn in a file.
type heldTurn struct {
	turnstone.Turn
	// Needs has the names of what a turn of a sealed session needs. Its title and state are not
	// written.
	Needs []turnstone.Digest `json:"needs,omitempty"`
}

// Add holds t. The caller has an open batch with t's data, so no GC ends before t is held. needs has
// the names of what t needs, if it is sealed.
func (h *Hold) Add(t turnstone.Turn, needs []turnstone.Digest) error {
	fail := func(err error) error {
		return turnstone.NewError("executor.hold", turnstone.KindUnavailable, string(t.ID), err)
	}
	if err := os.MkdirAll(h.cs.heldDir, 0o700); err != nil {
		return fail(err)
	}
	written := heldTurn{Turn: t, Needs: needs}
	if t.Domain != "" {
		written.Title, written.State = "", ""
	}
	b, err := json.Marshal(written)
	if err != nil {
		return fail(err)
	}
	path := filepath.Join(h.cs.heldDir, string(t.ID))
	lock, err := statedir.TryAcquire(path)
	if err == nil && lock == nil {
		err = errors.New("another process holds it")
	}
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		lock.Release()
		return fail(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns[t.ID] = lock
	h.cs.held.Store(t.ID, t)
	return nil
}

// Release ends the hold.
func (h *Hold) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, lock := range h.turns {
		h.cs.held.Delete(id)
		_ = os.Remove(filepath.Join(h.cs.heldDir, string(id)))
		lock.Release()
	}
	clear(h.turns)
	if h.batch != nil {
		_ = h.batch.Close()
	}
}

// Turn returns a turn of a session, or one that this process holds.
func (cs *ContextStore) Turn(ctx context.Context, id turnstone.TurnID) (turnstone.Turn, error) {
	if t, ok := cs.held.Load(id); ok {
		return t.(turnstone.Turn), nil
	}
	return cs.DB.Turn(ctx, id)
}

// markHeld marks the data of all turns that processes hold, and removes the files of processes that
// have ended.
func (cs *ContextStore) markHeld(ctx context.Context, r *Reach) error {
	entries, err := os.ReadDir(cs.heldDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return turnstone.NewError("executor.gc", turnstone.KindUnavailable, cs.heldDir, err)
	}
	for _, e := range entries {
		path := filepath.Join(cs.heldDir, e.Name())
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), "t_") {
			continue
		}
		if lock, err := statedir.TryAcquire(path); lock != nil {
			_ = os.Remove(path)
			lock.Release()
			continue
		} else if err != nil {
			return turnstone.NewError("executor.gc", turnstone.KindUnavailable, path, err)
		}
		var t heldTurn
		b, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(b, &t) != nil {
			continue // just begun: its batch is open, and GC marks again after the batch
		}
		for _, name := range t.Needs {
			r.Object(name)
		}
		if t.Domain != "" {
			continue
		}
		if err := r.Turn(ctx, t.Turn); err != nil {
			return err
		}
	}
	return nil
}
