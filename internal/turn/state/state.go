// Package state takes what a turn leaves for the next one out of its sandbox: files, environment
// and working directory, without secrets.
package state

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

// A Request says how the state of one turn is taken.
type Request struct {
	Image     string // of the turn
	Store     *store.Store
	Templates *template.Store
	Parent    *turnstone.TurnState // nil: the turn began on its template
	// Base is the tree that the sandbox's disk lies on; zero: the template's.
	Base    turnstone.TreeRef
	Secrets *secret.Set
	Bounds  collect.Bounds
	// Pause pauses a machine that stays, and returns its changes, or why it cannot be paused; nil:
	// the sandbox ends.
	Pause func(ctx context.Context, s *sandbox.Sandbox, b collect.Bounds) (c *collect.Changes,
		unpaused, err error)
	// Inherited returns the variables that the next turn begins with, of those of the shell.
	Inherited func(env []string) []string
	Tell      func(string) // is told what is not kept
}

// Collected is what a turn left behind, before it is committed.
type Collected struct {
	Batch *store.Batch // with the objects; the owner closes it
	State turnstone.Digest
	Tree  turnstone.TreeRef
	Base  turnstone.TreeRef // that the sandbox's disk lies on
	Layer turnstone.LayerInfo
}

// Collect takes the state out of the sandbox s, whose steps are over, into a new batch. unpaused is
// why Request.Pause has not paused the machine.
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

// freeze takes what the sandbox has changed. The machine ends, unless it is to be paused.
func (req *Request) freeze(ctx context.Context, s *sandbox.Sandbox) (c *collect.Changes,
	unpaused, err error) {
	if req.Pause != nil {
		return req.Pause(ctx, s, req.Bounds)
	}
	c, err = collect.Take(ctx, s, nil, req.Bounds)
	return c, nil, err
}

// read puts the state into the batch of l.
func (req *Request) read(ctx context.Context, s *sandbox.Sandbox, l *Collected,
	c *collect.Changes) error {
	var err error
	if l.Base = req.Base; l.Base == (turnstone.TreeRef{}) {
		if l.Base, err = req.Templates.Tree(ctx, s.Template, l.Batch); err != nil {
			return err
		}
	}
	if req.Secrets != nil { // looked through first: nothing of a value may get as far as a pack
		leaks := newLeakWatch(req.Secrets)
		watched := layer.Options{Inspect: leaks.inspect, Check: leaks.check}
		_, _, err := c.Apply(ctx, hashOnly{tree.NewHasher(), l.Batch}, l.Base, watched)
		if err == nil {
			err = leaks.found()
		}
		if err != nil {
			return err
		}
	}
	ref, stats, err := c.Apply(ctx, l.Batch, l.Base, layer.Options{})
	if err != nil {
		return err
	}
	l.Tree = ref
	if l.Layer, err = req.layerOf(ctx, l, l.Base, stats); err != nil {
		return err
	}
	env, dropped := req.Secrets.Strip(req.Inherited(c.Env))
	if len(dropped) > 0 {
		req.Tell("not kept, for they hold a secret: " + strings.Join(dropped, ", "))
	}
	if name := req.Secrets.Written().In(c.Cwd); name != "" {
		return Leaked("the working directory", name)
	}
	slices.Sort(env)
	b, err := json.Marshal(turnstone.TurnState{Format: repo.StateFormat, Image: req.Image,
		Tree: ref, Env: env, Cwd: c.Cwd})
	if err != nil {
		return err
	}
	l.State, err = l.Batch.Put(ctx, b)
	return err
}

// hashOnly keeps nothing of what is put, and gets what others have.
type hashOnly struct {
	*tree.Hasher
	have tree.Getter
}

// Get implements tree.Getter.
func (h hashOnly) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	return h.have.Get(ctx, d)
}

// layerOf is what the turn itself changed. A machine that went on has more than
// that on its disk.
func (req *Request) layerOf(ctx context.Context, l *Collected, base turnstone.TreeRef,
	stats layer.Stats) (info turnstone.LayerInfo, err error) {
	parent := base
	if req.Parent != nil {
		parent = req.Parent.Tree
	}
	if parent == l.Tree {
		return info, nil
	}
	info = turnstone.LayerInfo{Added: stats.Added, Changed: stats.Changed, Removed: stats.Removed}
	if parent != base {
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
