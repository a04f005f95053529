// Package branchmerge merges turns of a session.
package branchmerge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/merge"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Request is a request to merge turns. Default, Paths and Markers are those of merge.Options.
// docs/merge.md has the rules.
type Request struct {
	// From is the turn to merge: a reference in the form of session.DB.Resolve, or a branch, a tag
	// or a number if the session is named or the branch determines it.
	From string
	Into string // the branch to merge into, as "main" or "SESSION@main"; empty: main
	// name or ID; empty: the session of From or Into, or the session with a branch From
	Session string
	Default turnstone.Side
	Paths   map[string]turnstone.Side
	Markers bool
	NoFF    bool   // create a turn even if a fast-forward is possible
	DryRun  bool   // only report the result
	Message string // title of the turn; empty: a title with From and Into
}

// A merging is a running merge.
type merging struct {
	x       *repo.Repo
	cs      *repo.ContextStore
	req     Request
	started time.Time
	session turnstone.Session
	base    *turnstone.Turn // nil: none
	ours    *turnstone.Turn // nil: the branch has none
	theirs  turnstone.Turn
	states  [3]*turnstone.TurnState // of base, ours, theirs
	result  turnstone.TurnState
	report  *turnstone.MergeReport
	keys    *chain.Keys
}

// Merge merges a turn into a branch of its session, three-way: files, environment, working
// directory. With unresolved conflicts it stores nothing, and the report has the conflicts. After
// an error nothing is stored; an error of kind KindInvalid or KindNotFound means that the request
// is invalid.
func Merge(ctx context.Context, x *repo.Repo, req Request) (*turnstone.MergeReport, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	m := &merging{x: x, cs: cs, req: req, started: time.Now().UTC()}
	m.report = &turnstone.MergeReport{DryRun: req.DryRun, Conflicts: []turnstone.Conflict{},
		Resolved: []turnstone.Conflict{}, Merged: []string{}, Renames: []turnstone.MergeRename{}}
	if err := m.locate(ctx); err != nil {
		return nil, err
	}
	if !req.DryRun {
		if m.keys, err = chain.Open(ctx, x.Dir, cs, x.Passphrase); err != nil {
			return nil, err
		}
	}
	switch {
	case m.ours != nil && m.base != nil && m.base.ID == m.theirs.ID:
		m.report.Outcome = turnstone.MergeUpToDate
		return m.report, nil
	case m.ours == nil, m.base != nil && m.base.ID == m.ours.ID && !req.NoFF:
		return m.report, m.fastForward(ctx)
	}
	batch, err := m.cs.Store.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = batch.Close() }()
	if err := m.merge(ctx, batch); err != nil {
		return nil, err
	}
	if m.report.Outcome == turnstone.MergeConflicts || req.DryRun {
		return m.report, nil
	}
	return m.report, m.keep(ctx, batch)
}

// locate finds the session and the three turns.
func (m *merging) locate(ctx context.Context) error {
	if name, branch, ok := strings.Cut(m.req.Into, "@"); ok {
		m.req.Session, m.req.Into = cmp.Or(m.req.Session, name), branch
	}
	m.req.Into = cmp.Or(m.req.Into, session.Main)
	var err error
	if m.theirs, err = m.from(ctx); err != nil {
		return err
	}
	if m.session, err = m.cs.DB.Find(ctx, string(m.theirs.Session)); err != nil {
		return err
	}
	if m.req.Session != "" {
		s, err := m.cs.DB.Find(ctx, m.req.Session)
		if err != nil {
			return err
		}
		if s.ID != m.session.ID {
			err := fmt.Errorf("belongs to session %s, not to %s", m.session.Label(), s.Label())
			return m.invalid(m.req.From, err, "merge turns of one session")
		}
	}
	into, err := m.cs.DB.Branch(ctx, m.session.ID, m.req.Into)
	if err != nil {
		return err
	}
	if into.Head != "" {
		ours, err := m.cs.DB.Turn(ctx, into.Head)
		if err != nil {
			return err
		}
		base, found, err := m.cs.DB.MergeBase(ctx, ours, m.theirs)
		if err != nil {
			return err
		}
		if m.ours = &ours; found {
			m.base = &base
		}
	}
	m.report.Session, m.report.Into = m.session.Label(), m.req.Into
	if m.cs, err = m.cs.In(ctx, m.session.Domain); err != nil {
		return err
	}
	return m.readStates(ctx)
}

// readStates reads the states of the three turns.
func (m *merging) readStates(ctx context.Context) error {
	for i, s := range []struct {
		t  *turnstone.Turn
		to **turnstone.MergeSide
	}{{m.base, &m.report.Base}, {m.ours, &m.report.Ours}, {&m.theirs, &m.report.Theirs}} {
		if s.t == nil {
			m.states[i] = &turnstone.TurnState{}
			continue
		}
		st, err := m.cs.StateOf(ctx, *s.t)
		if err != nil {
			return err
		}
		m.states[i] = st
		*s.to = &turnstone.MergeSide{ID: s.t.ID, Number: s.t.Number, FSHash: st.Tree.Hash}
	}
	return nil
}

// from finds the turn to merge.
func (m *merging) from(ctx context.Context) (turnstone.Turn, error) {
	ref := m.req.From
	switch {
	case m.req.Session != "":
		s, err := m.cs.DB.Find(ctx, m.req.Session)
		if err != nil {
			return turnstone.Turn{}, err
		}
		return m.cs.DB.ResolveIn(ctx, s.ID, ref)
	case strings.Contains(ref, "@"), strings.HasPrefix(ref, "t_"):
		return m.cs.DB.Resolve(ctx, ref)
	}
	branch, _, _ := strings.Cut(ref, "~")
	all, err := m.cs.DB.List(ctx)
	if err != nil {
		return turnstone.Turn{}, err
	}
	var found []turnstone.Session
	for _, s := range all {
		if s.Name == "" {
			continue
		}
		branches, err := m.cs.DB.Branches(ctx, s.ID)
		if err != nil {
			return turnstone.Turn{}, err
		}
		named := func(b turnstone.Branch) bool { return b.Name == branch }
		if slices.ContainsFunc(branches, named) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 1:
		return m.cs.DB.ResolveIn(ctx, found[0].ID, ref)
	case 0:
		return turnstone.Turn{}, turnstone.Errorf("executor.merge", turnstone.KindNotFound,
			fmt.Sprintf("%.80q", ref),
			"no named session has such a branch").
			WithHint("write SESSION@BRANCH or SESSION@NUMBER, as turn session ls lists them")
	}
	var names []string
	for _, s := range found[:min(len(found), 5)] {
		names = append(names, s.Name+"@"+ref)
	}
	return turnstone.Turn{}, m.invalid(ref, fmt.Errorf("%d sessions have such a branch",
		len(found)),
		"name the session: "+strings.Join(names, ", "))
}

func (m *merging) invalid(subject string, err error, hint string) error {
	return turnstone.NewError("executor.merge", turnstone.KindInvalid, subject, err).WithHint(hint)
}

// lockHead prevents commits of the session's turns until unlock is called.
func (m *merging) lockHead(ctx context.Context) (unlock func(), err error) {
	leases, err := m.x.Dir.MkdirAll("leases") // it is missing before the first turn
	if err != nil {
		return nil, err
	}
	return m.cs.DB.LockHeads(ctx, leases, m.session.ID)
}

// fastForward moves the branch to theirs.
func (m *merging) fastForward(ctx context.Context) error {
	m.report.Outcome = turnstone.MergeFastForward
	m.report.ID, m.report.Number = m.theirs.ID, m.theirs.Number
	m.report.Branch, m.report.FSHash = m.req.Into, m.states[2].Tree.Hash
	if m.req.DryRun {
		return nil
	}
	unlock, err := m.lockHead(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var head turnstone.TurnID
	if m.ours != nil {
		head = m.ours.ID
	}
	return m.cs.DB.SetHead(ctx, m.session.ID, m.req.Into, head, m.theirs.ID)
}

// merge merges the states into batch, and writes the report.
func (m *merging) merge(ctx context.Context, batch *store.Batch) error {
	base, ours, theirs := m.states[0], m.states[1], m.states[2]
	if ours.Image != theirs.Image {
		err := fmt.Errorf("%s started from %s, and %s from %s", m.req.Into, ours.Image,
			m.req.From, theirs.Image)
		return m.invalid("image", err, "merge turns that started from one template")
	}
	opts := merge.Options{Default: m.req.Default, Paths: m.req.Paths, Markers: m.req.Markers,
		OursName: m.req.Into, TheirsName: m.req.From, BaseName: "nothing"}
	if m.base != nil {
		opts.BaseName = fmt.Sprintf("turn %d", m.base.Number)
	}
	res, err := merge.Trees(ctx, batch, base.Tree, ours.Tree, theirs.Tree, opts)
	if err != nil {
		return err
	}
	m.result = turnstone.TurnState{Format: repo.StateFormat, Image: ours.Image, Tree: res.Tree}
	var others []merge.Conflict
	m.result.Env, others = merge.Env(base.Env, ours.Env, theirs.Env, opts)
	var c *merge.Conflict
	if m.result.Cwd, c = merge.Cwd(base.Cwd, ours.Cwd, theirs.Cwd, opts); c != nil {
		others = append(others, *c)
	}
	if err := m.unused(res, others); err != nil {
		return err
	}
	for _, c := range append(append(res.Conflicts, res.Resolved...), others...) {
		if c.Resolution == "" {
			m.report.Conflicts = append(m.report.Conflicts, c.Report())
		} else {
			m.report.Resolved = append(m.report.Resolved, c.Report())
		}
	}
	m.report.Merged = append(m.report.Merged, res.Merged...)
	m.report.Renames = append(m.report.Renames, res.Renames...)
	m.report.RenamesSkipped = res.RenamesSkipped
	if len(m.report.Conflicts) > 0 {
		m.report.Outcome = turnstone.MergeConflicts
		return nil
	}
	m.report.Outcome, m.report.FSHash = turnstone.MergeDone, res.Tree.Hash
	if err := m.settleCwd(ctx, batch); err != nil {
		return err
	}
	m.report.Layer, err = layerOf(ctx, batch, ours.Tree, res.Tree)
	return err
}

// unused rejects a path in the request that has no conflict: it is probably misspelt.
func (m *merging) unused(res *merge.Result, others []merge.Conflict) error {
	unused := res.Unused
	for p := range m.req.Paths {
		if !strings.HasPrefix(p, "/") &&
			!slices.ContainsFunc(others, func(c merge.Conflict) bool { return c.Path == p }) {
			unused = append(unused, p)
		}
	}
	if len(unused) == 0 {
		return nil
	}
	slices.Sort(unused)
	hint := "turn merge --dry-run lists the conflicts"
	if all := slices.Concat(res.Conflicts, res.Resolved, others); len(all) > 0 && len(all) <= 5 {
		var paths []string
		for _, c := range all {
			paths = append(paths, c.Path)
		}
		slices.Sort(paths)
		hint = "there are conflicts at " + strings.Join(slices.Compact(paths), ", ")
	}
	return m.invalid(unused[0], errors.New("there is no conflict to resolve"), hint)
}

// settleCwd sets the working directory to its nearest existing parent.
func (m *merging) settleCwd(ctx context.Context, g tree.Getter) error {
	cwd := path.Clean("/" + m.result.Cwd)
	for ; cwd != "/"; cwd = path.Dir(cwd) {
		_, e, err := tree.Resolve(ctx, g, m.result.Tree, cwd)
		if err == nil && e.Type == tree.Dir {
			break
		}
		if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound &&
			turnstone.KindOf(err) != turnstone.KindInvalid {
			return err
		}
	}
	if cwd != m.result.Cwd {
		m.report.CwdGone = m.result.Cwd
	}
	m.result.Cwd, m.report.Cwd = cwd, cwd
	return nil
}

// info returns the front matter of the receipt.
func (m *merging) info(t turnstone.Turn, template turnstone.Digest) document.TurnInfo {
	return document.TurnInfo{ID: t.ID, Started: m.started, Duration: time.Since(m.started),
		Template: template, Image: m.result.Image, Result: turnstone.ResultPassed,
		Session: m.session.Label(), Number: t.Number, Branch: m.report.Branch, Parents: t.Parents,
		FSHash: m.result.Tree.Hash, Layer: m.report.Layer.Digest, Changes: m.report.Layer.String()}
}
