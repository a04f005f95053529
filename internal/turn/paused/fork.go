package paused

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/sandboxes"
)

// ForkLive is Fork for the newest turn of a branch with a paused machine (lifetime: session): the
// new branch gets a paused clone of that machine, with its processes and its memory.
func ForkLive(ctx context.Context, h *host.Host, ref, name string) (turnstone.Branch, error) {
	cs, t, err := h.Repo.Resolve(ctx, ref)
	if err != nil {
		return turnstone.Branch{}, err
	}
	if err := branchFree(ctx, cs, t.Session, name); err != nil {
		// before a clone exists, and before name becomes part of a path
		return turnstone.Branch{}, err
	}
	from, err := at(ctx, h, t)
	if err != nil {
		return turnstone.Branch{}, err
	}
	defer from.lock.Release()
	s, err := cs.DB.Find(ctx, string(t.Session))
	if err != nil {
		return turnstone.Branch{}, err
	}
	rules, err := h.Rules()
	if err != nil {
		return turnstone.Branch{}, err
	}
	if from.store.Holder, err = h.Holder(ctx); err != nil {
		return turnstone.Branch{}, err
	}
	clones, err := from.store.Fork(ctx, from.Sandbox,
		sandboxes.Fork{Count: 1, TTL: lifetime, Label: label(s, name)}, nil)
	if err != nil {
		return turnstone.Branch{}, err
	}
	to := &Machine{Sandbox: clones[0].ID, Turn: t.ID, Base: from.Base, Begun: from.Begun,
		Rules: h.StillRules(rules),
		host:  h, store: from.store, path: pathOf(h.Dir, t.Session, name)}
	return to.adopt(ctx, cs, t, name)
}

// branchFree returns an error if name is invalid or the name of an existing branch.
func branchFree(ctx context.Context, cs *repo.ContextStore, s turnstone.SessionID,
	name string) error {
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
			return fail("choose another name", "%s exists already", name)
		}
	}
	return err
}

// adopt pauses the clone and makes it the machine of a new branch.
func (h *Machine) adopt(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn,
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
		return drop(err) // the file at h.path may describe another machine
	}
	if err := h.write(); err != nil {
		return drop(err)
	}
	return b, nil
}

// End ends the paused machines of a session: of one branch, or, if branch is empty, of all
// branches. A machine that a turn uses is left to that turn.
func End(ctx context.Context, h *host.Host, s turnstone.SessionID, branch string) error {
	paths := []string{pathOf(h.Dir, s, branch)}
	if branch == "" {
		all, err := os.ReadDir(h.Dir.Path("machines"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return turnstone.NewError("executor.remove", turnstone.KindUnavailable,
				h.Dir.Path("machines"),
				err)
		}
		paths = nil
		for _, e := range all {
			if strings.HasPrefix(e.Name(), string(s)+"-") && strings.HasSuffix(e.Name(), ".json") {
				paths = append(paths, filepath.Join(h.Dir.Path("machines"), e.Name()))
			}
		}
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, endAt(ctx, h, path))
	}
	return errors.Join(errs...)
}

func endAt(ctx context.Context, h *host.Host, path string) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	var err error
	m := &Machine{host: h, store: sandboxes.NewStore(h.Dir.Root), path: path}
	if m.lock, err = statedir.TryAcquire(path + ".lock"); err != nil || m.lock == nil {
		return err
	}
	defer m.lock.Release()
	if b, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(b, m) // a file without a valid machine is removed too
	}
	m.remove(ctx)
	_ = os.Remove(path + ".lock")
	return nil
}

// pathOf returns the path of the file that describes the machine of a session's branch. No name
// contains a "+", so no two branches have the same file.
func pathOf(h *statedir.Dir, s turnstone.SessionID, branch string) string {
	return filepath.Join(h.Path("machines"),
		string(s)+"-"+strings.ReplaceAll(branch, "/", "+")+".json")
}

// at returns the paused machine that has the state of turn t. The machine's lock is held.
func at(ctx context.Context, h *host.Host, t turnstone.Turn) (*Machine, error) {
	none := turnstone.Errorf("executor.fork", turnstone.KindNotFound,
		fmt.Sprintf("turn %d", t.Number),
		"it has no paused machine").
		WithHint("fork the newest turn of a branch whose turns have lifetime: session")
	m := &Machine{host: h, store: sandboxes.NewStore(h.Dir.Root),
		path: pathOf(h.Dir, t.Session, t.Branch)}
	if _, err := os.Stat(m.path); err != nil {
		return nil, none
	}
	var err error
	if m.lock, err = statedir.Acquire(ctx, m.path+".lock", nil); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(m.path)
	if err == nil {
		err = json.Unmarshal(b, m)
	}
	if err != nil || m.Turn != t.ID {
		m.lock.Release()
		return nil, none
	}
	return m, nil
}

// RemoveSession removes a session, and ends its paused machines. GC frees the space of its turns.
func RemoveSession(ctx context.Context, h *host.Host, nameOrID string) (turnstone.Session, error) {
	s, err := h.Repo.RemoveSession(ctx, nameOrID)
	if err != nil {
		return s, err
	}
	return s, End(ctx, h, s.ID, "")
}

// RemoveBranch removes a branch of a session, and ends its paused machine. The turns remain until
// GC removes them.
func RemoveBranch(ctx context.Context, h *host.Host, nameOrID, branch string) error {
	s, err := h.Repo.RemoveBranch(ctx, nameOrID, branch)
	if err != nil {
		return err
	}
	return End(ctx, h, s.ID, branch)
}
