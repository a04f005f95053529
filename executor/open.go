package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// open makes a sandbox for the turn, on the state that it begins with.
func (r *run) open(ctx context.Context) (*Sandbox, error) {
	r.plan.env = append(r.plan.env, r.plan.secrets.Env()...)
	r.info.Start = "the template"
	if r.at.parent != nil {
		r.info.Start = fmt.Sprintf("turn %d", r.at.parent.Number)
	}
	if r.plan.lifetime == document.LifetimeSession {
		return r.openPaused(ctx)
	}
	if r.skipsPaused() {
		r.obs.Preparing("the session's paused machine is not used: this turn has lifetime: turn")
	}
	return r.x.openAt(ctx, r.plan, r.at, r.obs.Preparing, r.clock)
}

// openAt makes a sandbox for p on the state of at's parent.
func (x *Host) openAt(ctx context.Context, p *plan, at *branchPoint, progress func(string), clock *stopwatch) (*Sandbox, error) {
	p.prepare = func(ctx context.Context, tmpl *template.Template, m *substrate.Machine) (func(), error) {
		return x.below(ctx, p, at, tmpl, m, progress)
	}
	s, err := x.open(ctx, p, progress, clock)
	if err != nil || at.state == nil {
		return s, err
	}
	if err := s.client.StateSetSession(ctx, &wire.StateSetSessionParams{Cwd: p.cwd, Env: mergeEnv(at.state.Env, p.env)}); err != nil {
		err = s.causeOf(err)
		_ = s.Close()
		return nil, err
	}
	clock.lap("environment")
	return s, nil
}

// below puts into m what a sandbox on at's state lies on. It all stays until
// release is called.
func (x *Host) below(ctx context.Context, p *plan, at *branchPoint, tmpl *template.Template, m *substrate.Machine, progress func(string)) (release func(), err error) {
	release = func() {}
	if p.home != "" {
		if m.Home, release, err = x.homeDisk(ctx, p, progress); err != nil {
			return nil, err
		}
	}
	if at.layers = tmpl.Layers; at.state == nil && len(at.layers) == 0 {
		return release, nil
	}
	unlock := release
	if at.cs == nil {
		at.cs, err = x.context(ctx)
	}
	var base tree.Ref
	if err == nil {
		base, err = at.cs.rootTree(ctx, x.Repo, tmpl)
	}
	if err == nil {
		m.Layers, release, err = at.cs.images.Stack(ctx, base, at.history(ctx))
	}
	if err != nil {
		unlock()
		return nil, err
	}
	free := release
	return func() { free(); unlock() }, nil
}

// mergeEnv returns base with the variables of more in the place of its own.
func mergeEnv(base, more []string) []string {
	at := map[string]int{}
	var env []string
	for _, kv := range append(append([]string(nil), base...), more...) {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			env[i] = kv
			continue
		}
		at[name] = len(env)
		env = append(env, kv)
	}
	return env
}

// templateTree returns the tree of a template, whose directories it puts into the
// store where they are not there yet, and lets the store find its files.
func (cs *contextStore) templateTree(ctx context.Context, x *Repo, tmpl *template.Template) (tree.Ref, error) {
	ref, err := cs.rootTree(ctx, x, tmpl)
	if n := len(tmpl.Layers); n > 0 {
		ref = tmpl.Layers[n-1].Tree
	}
	return ref, err
}

// rootTree is templateTree of the template's root image alone, without its layers.
func (cs *contextStore) rootTree(ctx context.Context, x *Repo, tmpl *template.Template) (tree.Ref, error) {
	batch, err := cs.store.Begin(ctx)
	if err != nil {
		return tree.Ref{}, err
	}
	defer func() { _ = batch.Close() }()
	ref, err := x.templates().RootTree(ctx, tmpl, batch)
	if err != nil {
		return ref, err
	}
	return ref, batch.Flush(ctx)
}

// HomeSize is how large a persistent home directory can get; its file takes up
// what is in it.
const HomeSize turnstone.Bytes = 32 << 30

// homeDisk returns the disk of p's home, made where there is none, and keeps it until
// release is called: one sandbox at a time may write to it. It waits for others for
// no longer than the turn may take.
func (x *Host) homeDisk(ctx context.Context, p *plan, progress func(string)) (path string, release func(), err error) {
	dir, err := x.home.MkdirAll("homes")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, p.home+homeSuffix)
	lock, err := lockHome(ctx, p, path, progress)
	if err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		fresh := path + ".new"
		_ = os.Remove(fresh) // of somebody who was killed
		if err = qemu.MakeHome(ctx, fresh, HomeSize); err == nil {
			err = os.Rename(fresh, path)
		}
		if err != nil {
			lock.Release()
			return "", nil, err
		}
	}
	return path, lock.Release, nil
}

// lockHome takes the lock of p's home, whose disk is at path, and writes down beside it
// who has it.
func lockHome(ctx context.Context, p *plan, path string, progress func(string)) (*statedir.Lock, error) {
	within, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	lock, err := statedir.Acquire(within, path+".lock", func() { progress("waiting for home " + p.home + ", which " + homeUser(path) + " uses") })
	if err != nil && ctx.Err() == nil && errors.Is(within.Err(), context.DeadlineExceeded) {
		return nil, turnstone.Errorf("executor.home", turnstone.KindTimeout, "home "+p.home,
			"%s used it all of the turn's %s", homeUser(path), p.timeout).
			WithHint("wait for it, give this turn a longer timeout, or another home")
	}
	if err != nil {
		return nil, err
	}
	if err := filestamp.WriteFile(path+".user", []byte(p.turn), 0o600); err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}

// homeUser says in words who has the home whose disk is at path.
func homeUser(path string) string {
	if id := homeTurn(path); id != "" {
		return "turn " + string(id)
	}
	return "another turn"
}

// homeTurn returns the turn that has the home whose disk is at path, or had it last;
// empty when that is not known.
func homeTurn(path string) turnstone.TurnID {
	f, err := os.Open(path + ".user")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if b, err := io.ReadAll(io.LimitReader(f, 64)); err == nil && turnID.Match(b) {
		return turnstone.TurnID(b)
	}
	return ""
}

// turnID is the form of what lockHome writes.
var turnID = lazyregexp.New(`^[a-z]+_[0-9a-z]+$`)
