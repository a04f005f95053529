// Package state collects the data that a turn leaves for the next turn from its sandbox: files,
// environment and working directory, without secrets.
package state

import (
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/homes"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

// A Request describes how the state of one turn is collected.
type Request struct {
	Image     string // the turn's image
	Store     *store.Store
	Templates *template.Store
	Parent    *turnstone.TurnState // nil: the turn started from its template
	// Base is the tree below the sandbox's disk; zero: the template's tree.
	Base    turnstone.TreeRef
	Home    *homes.Home // was put on Base, and is not part of the state; nil: none
	Secrets *secret.Set
	Bounds  collect.Bounds
	Pause   Pause // pauses the session's machine; nil: the sandbox ends
	Soon    bool  // the sandbox may end later: see collect.Take
	// Inherited selects the shell's variables that the next turn starts with.
	Inherited func(env []string) []string
	Tell      func(string) // receives the reasons for data that is not kept
}

// A Pause pauses a machine and returns its changes, or the reason why the machine cannot be paused.
type Pause func(ctx context.Context, s *sandbox.Sandbox, b collect.Bounds) (c *collect.Changes,
	unpaused, err error)

// PauseRunning is a Pause of a machine of this process.
func PauseRunning(ctx context.Context, s *sandbox.Sandbox, b collect.Bounds) (c *collect.Changes,
	unpaused, err error) {
	ctx, cancel := context.WithTimeout(ctx, collect.TimeLimit)
	defer cancel()
	res, err := s.Client().StateGetSession(ctx)
	if err != nil {
		return nil, nil, s.CauseOf(err)
	}
	upper, err := s.Pause(ctx)
	if err != nil {
		return nil, nil, err
	}
	disk, err := s.Disk()
	if err != nil {
		return nil, nil, err
	}
	c, err = collect.OfPaused(ctx, s, disk, upper, res.Cwd, res.Env, b)
	return c, nil, err
}

// Collected is the data that a turn left, before the commit.
type Collected struct {
	Batch *store.Batch // contains the objects; the owner closes it
	State turnstone.Digest
	Tree  turnstone.TreeRef
	Base  turnstone.TreeRef // the tree below the sandbox's disk
	Layer turnstone.LayerInfo
}

// Collect collects the state of the sandbox s, whose steps have ended, into a new batch. unpaused
// is the reason why Request.Pause has not paused the machine.
func Collect(ctx context.Context, s *sandbox.Sandbox, req Request) (l *Collected, unpaused,
	err error) {
	changes, unpaused, err := req.freeze(ctx, s)
	if err != nil {
		return nil, unpaused, err
	}
	defer func() { _ = changes.Close() }()
	batch, err := req.Store.Begin(ctx)
	if err != nil {
		return nil, unpaused, err
	}
	l = &Collected{Batch: batch}
	if err := req.read(ctx, s, l, changes); err != nil {
		_ = batch.Close()
		return nil, unpaused, err
	}
	return l, unpaused, nil
}

// freeze returns the sandbox's changes. The machine ends unless it is to be paused.
func (req *Request) freeze(ctx context.Context, s *sandbox.Sandbox) (c *collect.Changes,
	unpaused, err error) {
	if req.Pause != nil {
		return req.Pause(ctx, s, req.Bounds)
	}
	c, err = collect.Take(ctx, s, nil, req.Bounds, req.Soon)
	return c, nil, err
}

// read adds the state to the batch of l.
func (req *Request) read(ctx context.Context, s *sandbox.Sandbox, l *Collected,
	c *collect.Changes) error {
	var err error
	if l.Base = req.Base; l.Base == (turnstone.TreeRef{}) {
		if l.Base, err = req.Templates.Tree(ctx, s.Template, l.Batch); err != nil {
			return err
		}
	}
	below := l.Base // of the sandbox's disk
	if req.Home != nil {
		if below, err = req.Home.Onto(ctx, l.Batch, l.Base); err != nil {
			return err
		}
	}
	if req.Secrets != nil { // before the batch, so that no value of a secret reaches a pack
		leaks := newLeakWatch(req.Secrets)
		watched := layer.Options{Inspect: leaks.inspect, Check: leaks.check}
		_, _, err := c.Apply(ctx, hashOnly{tree.NewHasher(), l.Batch}, below, watched)
		if err == nil {
			err = leaks.found()
		}
		if err != nil {
			return err
		}
	}
	ref, stats, err := c.Apply(ctx, l.Batch, below, layer.Options{})
	if err == nil && req.Home != nil {
		ref, err = req.Home.Leave(ctx, l.Batch, ref, l.Base)
	}
	if err != nil {
		return err
	}
	l.Tree = ref
	if l.Layer, err = req.layerOf(ctx, l, below, stats); err != nil {
		return err
	}
	env, dropped := req.Secrets.Strip(req.Inherited(c.Env))
	if len(dropped) > 0 {
		req.Tell("not kept because they hold a secret: " + strings.Join(dropped, ", "))
	}
	if name := req.Secrets.Written().In(c.Cwd); name != "" {
		return Leaked("the working directory", name)
	}
	env, cwd := req.text(env, c.Cwd)
	slices.Sort(env)
	b, err := json.Marshal(turnstone.TurnState{Format: repo.StateFormat, Image: req.Image,
		Tree: ref, Env: env, Cwd: cwd})
	if err != nil {
		return err
	}
	l.State, err = l.Batch.Put(ctx, b)
	return err
}

// text returns what a state can hold of a session, which is text: JSON would replace other bytes, and
// the next turn would begin with other values and in another directory.
func (req *Request) text(env []string, cwd string) ([]string, string) {
	var dropped []string
	kept := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		bad := !utf8.ValidString(kv)
		if bad {
			dropped = append(dropped, strings.ToValidUTF8(name, "?"))
		}
		return bad
	})
	if len(dropped) > 0 {
		req.Tell("not kept because they are not UTF-8: " + strings.Join(dropped, ", "))
	}
	at := cwd
	for !utf8.ValidString(at) {
		at = path.Dir(at)
	}
	if at != cwd {
		req.Tell("the working directory is not kept, because its name is not UTF-8: next is " + at)
	}
	return kept, at
}

// hashOnly discards objects that are put, and reads the objects of its Getter.
type hashOnly struct {
	*tree.Hasher
	have tree.Getter
}

// Get implements tree.Getter.
func (h hashOnly) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	return h.have.Get(ctx, d)
}

// layerOf returns the changes of the turn itself. The disk of a resumed machine has the changes of
// earlier turns too, and a disk on a home has those of the home. below is the tree below the disk.
func (req *Request) layerOf(ctx context.Context, l *Collected, below turnstone.TreeRef,
	stats layer.Stats) (info turnstone.LayerInfo, err error) {
	parent := l.Base
	if req.Parent != nil {
		parent = req.Parent.Tree
	}
	if parent == l.Tree {
		return info, nil
	}
	info = turnstone.LayerInfo{Added: stats.Added, Changed: stats.Changed, Removed: stats.Removed}
	if parent != below {
		info = turnstone.LayerInfo{}
		for c, err := range tree.Diff(ctx, l.Batch, parent, l.Tree) {
			switch {
			case err != nil:
				return info, err
			case c.Old == nil:
				info.Added++
			case c.New == nil:
				info.Removed++
			default:
				info.Changed++
			}
		}
	}
	info.Digest, err = layer.Digest(ctx, l.Batch, parent, l.Tree)
	return info, err
}
