package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/sandboxes"
)

// ForkLive is Fork for the newest turn of a branch whose machine stays between
// turns (lifetime: session): the new branch gets a clone of that machine, with its
// processes and its memory, paused as it is.
func (x *Runner) ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	cs, t, err := x.repo.Resolve(ctx, ref)
	if err != nil {
		return turnstone.Branch{}, err
	}
	if err := branchFree(ctx, cs, t.Session, name); err != nil {
		return turnstone.Branch{}, err // before a clone is made, and before name is a file's
	}
	from, err := x.pausedAt(ctx, t)
	if err != nil {
		return turnstone.Branch{}, err
	}
	defer from.lock.Release()
	s, err := cs.DB.Find(ctx, string(t.Session))
	if err != nil {
		return turnstone.Branch{}, err
	}
	rules, err := x.hostRules()
	if err != nil {
		return turnstone.Branch{}, err
	}
	if from.store.Holder, err = x.holder(ctx); err != nil {
		return turnstone.Branch{}, err
	}
	clones, err := from.store.Fork(ctx, from.Sandbox, sandboxes.Fork{Count: 1, TTL: pausedLifetime, Label: pausedLabel(s, name)}, nil)
	if err != nil {
		return turnstone.Branch{}, err
	}
	to := &pausedMachine{Sandbox: clones[0].ID, Turn: t.ID, Base: from.Base, Rules: x.stillHostRules(rules), x: x, store: from.store,
		path: x.pausedPath(t.Session, name)}
	return to.adopt(ctx, cs, t, name)
}

// branchFree is an error when name is no name, or one that a branch has.
func branchFree(ctx context.Context, cs *repo.ContextStore, s turnstone.SessionID, name string) error {
	fail := func(hint, format string, args ...any) error {
		return turnstone.Errorf("executor.fork", turnstone.KindInvalid, "branch", format, args...).
			WithHint(hint)
	}
	if err := session.CheckName(turnstone.NameOfBranch, name); err != nil {
		return err
	}
	branches, err := cs.DB.Branches(ctx, s)
	for _, b := range branches {
		if b.Name == name {
			return fail("choose another name", "%s is one already", name)
		}
	}
	return err
}

// adopt pauses the clone and makes it the machine of a new branch.
func (h *pausedMachine) adopt(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn,
	name string) (b turnstone.Branch, err error) {
	drop := func(err error) (turnstone.Branch, error) {
		h.control(nil)
		_ = h.store.Remove(context.WithoutCancel(ctx), h.Sandbox)
		return b, err
	}
	if h.lock, err = statedir.Acquire(ctx, h.path+".lock", nil); err != nil {
		return drop(err)
	}
	defer h.lock.Release()
	ctl, err := h.store.Control(ctx, h.Sandbox)
	if err != nil {
		return drop(err)
	}
	h.control(ctl)
	defer h.control(nil)
	if _, err = ctl.Pause(ctx); err != nil {
		return drop(err)
	}
	if b, err = cs.DB.Fork(ctx, t, name); err != nil {
		return drop(err) // the file at h.path may be another machine's
	}
	if err := h.write(); err != nil {
		return drop(err)
	}
	return b, nil
}

// endPaused ends the machines that a session keeps: of one branch, or, where branch is
// empty, of all. One that a turn uses is left to it.
func (x *Runner) endPaused(ctx context.Context, s turnstone.SessionID, branch string) error {
	paths := []string{x.pausedPath(s, branch)}
	if branch == "" {
		all, err := os.ReadDir(x.home.Path("machines"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return turnstone.NewError("executor.remove", turnstone.KindUnavailable, x.home.Path("machines"),
				err)
		}
		paths = nil
		for _, e := range all {
			if strings.HasPrefix(e.Name(), string(s)+"-") && strings.HasSuffix(e.Name(), ".json") {
				paths = append(paths, filepath.Join(x.home.Path("machines"), e.Name()))
			}
		}
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, x.endPausedAt(ctx, path))
	}
	return errors.Join(errs...)
}

func (x *Runner) endPausedAt(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	var err error
	h := &pausedMachine{x: x, store: sandboxes.NewStore(x.home), path: path}
	if h.lock, err = statedir.TryAcquire(path + ".lock"); err != nil || h.lock == nil {
		return err
	}
	defer h.lock.Release()
	if b, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(b, h) // one that names no machine is removed all the same
	}
	h.remove(ctx)
	_ = os.Remove(path + ".lock")
	return nil
}

// pausedPath is where the machine of a session's branch is written down. No name has a
// "+", so that no two branches have one file.
func (x *Runner) pausedPath(s turnstone.SessionID, branch string) string {
	return filepath.Join(x.home.Path("machines"), string(s)+"-"+strings.ReplaceAll(branch, "/", "+")+".json")
}

// pausedAt returns the paused machine that has the state of turn t. Its lock is held.
func (x *Runner) pausedAt(ctx context.Context, t turnstone.Turn) (*pausedMachine, error) {
	none := turnstone.Errorf("executor.fork", turnstone.KindNotFound, fmt.Sprintf("turn %d", t.Number),
		"no machine stands on it").
		WithHint("a machine stays after turns with lifetime: session, on the newest turn of their branch")
	h := &pausedMachine{x: x, store: sandboxes.NewStore(x.home), path: x.pausedPath(t.Session, t.Branch)}
	if _, err := os.Stat(h.path); err != nil {
		return nil, none
	}
	var err error
	if h.lock, err = statedir.Acquire(ctx, h.path+".lock", nil); err != nil {
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
