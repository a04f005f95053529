package repo

import (
	"context"
	"path"
	"reflect"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A comparison is a FileChange with its entries; nil: absent.
type comparison struct {
	turnstone.FileChange
	old, new *tree.Entry
}

// Diff compares the states of two turns by their trees only: it skips equal parts.
func (x *Repo) Diff(ctx context.Context, req turnstone.DiffRequest) (*turnstone.StateDiff, error) {
	cs, to, err := x.Resolve(ctx, req.From)
	if err != nil {
		return nil, err
	}
	if req.To == "" {
		return x.diffToParent(ctx, cs, to, req)
	}
	from := to
	if to, err = cs.Within(ctx, from.Session, req.To); err != nil {
		return nil, err
	}
	a, err := cs.StateOf(ctx, from)
	if err != nil {
		return nil, err
	}
	b, err := cs.StateOf(ctx, to)
	if err != nil {
		return nil, err
	}
	d, err := cs.diff(ctx, a, b, req)
	if err == nil {
		d.From.Turn, d.From.Number, d.To.Turn, d.To.Number = from.ID, from.Number, to.ID, to.Number
	}
	return d, err
}

// diffToParent compares the state of t with its initial state.
func (x *Repo) diffToParent(ctx context.Context, cs *ContextStore, t turnstone.Turn,
	req turnstone.DiffRequest) (*turnstone.StateDiff, error) {
	b, err := cs.StateOf(ctx, t)
	if err != nil {
		return nil, err
	}
	var a *turnstone.TurnState
	var parent turnstone.Turn
	if id := t.Parent(); id != "" {
		if parent, err = cs.DB.Turn(ctx, id); err == nil {
			a, err = cs.StateOf(ctx, parent)
		}
	} else {
		a, err = x.templateState(ctx, cs, b.Image)
	}
	if err != nil {
		return nil, err
	}
	d, err := cs.diff(ctx, a, b, req)
	if err == nil {
		d.From.Turn, d.From.Number, d.To.Turn, d.To.Number = parent.ID, parent.Number,
			t.ID, t.Number
	}
	return d, err
}

// templateState returns the initial state of a session's first turn. It builds nothing.
func (x *Repo) templateState(ctx context.Context, cs *ContextStore,
	image string) (*turnstone.TurnState, error) {
	tmpl, err := x.BuiltTemplate(ctx, image)
	if err != nil {
		return nil, err
	}
	ref, err := cs.TemplateTree(ctx, tmpl)
	if err != nil {
		return nil, err
	}
	return &turnstone.TurnState{Format: StateFormat, Image: image, Tree: ref, Env: tmpl.EnvList(),
		Cwd: tmpl.Workdir}, nil
}

// BuiltTemplate returns a template without building it.
func (x *Repo) BuiltTemplate(ctx context.Context, name string) (*turnstone.Template, error) {
	details, err := x.templates.Show(ctx, name)
	if err != nil {
		return nil, err
	}
	if details.Template == nil {
		return nil, turnstone.Errorf("executor.template", turnstone.KindUnavailable,
			"template "+name,
			"is not built").WithHint("build the template: turn template build " + name)
	}
	return details.Template, nil
}

// diff compares two states.
func (cs *ContextStore) diff(ctx context.Context, a, b *turnstone.TurnState,
	req turnstone.DiffRequest) (*turnstone.StateDiff, error) {
	d := &turnstone.StateDiff{From: turnstone.DiffSide{FSHash: a.Tree.Hash},
		To:    turnstone.DiffSide{FSHash: b.Tree.Hash},
		Files: []turnstone.FileChange{}, Env: diffEnv(a.Env, b.Env)}
	if a.Cwd != b.Cwd {
		d.Cwd = &turnstone.CwdChange{Old: a.Cwd, New: b.Cwd}
	}
	var all []comparison
	for c, err := range tree.Diff(ctx, cs.Store, a.Tree, b.Tree) {
		if err != nil {
			return nil, err
		}
		if f, differs := fileChange(c); differs {
			all = append(all, f)
		}
	}
	for _, c := range findRenames(all) {
		if req.Stat || req.Text {
			if err := cs.compareText(ctx, &c, req.Text); err != nil {
				return nil, err
			}
		}
		d.Files = append(d.Files, c.FileChange)
	}
	return d, nil
}

// fileChange returns c as a change for users: timestamps alone are not a change.
func fileChange(c tree.Change) (f comparison, differs bool) {
	f = comparison{turnstone.FileChange{Path: c.Path}, c.Old, c.New}
	if c.Old != nil {
		i := fileInfo(c.Path, c.Old)
		f.Old = &i
	}
	if c.New != nil {
		i := fileInfo(c.Path, c.New)
		f.New = &i
	}
	switch {
	case c.Old == nil && c.New == nil:
		f.Status, f.What = turnstone.ChangeModified, []string{"links"}
	case c.Old == nil:
		f.Status = turnstone.ChangeAdded
	case c.New == nil:
		f.Status = turnstone.ChangeDeleted
	case c.Old.Type != c.New.Type:
		f.Status = turnstone.ChangeRetyped
	default:
		f.Status = turnstone.ChangeModified
		f.What = whatDiffers(c)
		return f, len(f.What) > 0
	}
	return f, true
}

func whatDiffers(c tree.Change) (what []string) {
	a, b := c.Old, c.New
	for _, field := range []struct {
		name    string
		differs bool
	}{
		{"content", a.Type == tree.File && a.Content.Digest != b.Content.Digest},
		{"target", a.Target != b.Target},
		{"mode", a.Mode != b.Mode},
		{"owner", a.UID != b.UID || a.GID != b.GID},
		{"xattrs", (len(a.Xattrs) > 0 || len(b.Xattrs) > 0) &&
			!reflect.DeepEqual(a.Xattrs, b.Xattrs)},
		{"device", a.Major != b.Major || a.Minor != b.Minor},
		{"links", !slices.Equal(c.OldLinks, c.NewLinks)},
	} {
		if field.differs {
			what = append(what, field.name)
		}
	}
	return what
}

// findRenames joins a deleted and an added file with the same content to one change. Of several
// candidates it selects the one with the same base name, otherwise the first.
func findRenames(all []comparison) []comparison {
	gone := map[turnstone.Digest][]int{}
	for i, c := range all {
		if c.Status == turnstone.ChangeDeleted && c.old.Type == tree.File && c.old.Size > 0 {
			gone[c.old.Content.Digest] = append(gone[c.old.Content.Digest], i)
		}
	}
	joined := map[int]bool{}
	for i := range all {
		c := &all[i]
		if c.Status != turnstone.ChangeAdded || c.new.Type != tree.File {
			continue
		}
		from := gone[c.new.Content.Digest]
		if len(from) == 0 {
			continue
		}
		k := max(0, slices.IndexFunc(from,
			func(j int) bool { return path.Base(all[j].Path) == path.Base(c.Path) }))
		j := from[k]
		gone[c.new.Content.Digest] = slices.Delete(from, k, k+1)
		joined[j] = true
		c.Status, c.OldPath, c.Old, c.old = turnstone.ChangeRenamed, all[j].Path, all[j].Old,
			all[j].old
	}
	if len(joined) == 0 {
		return all
	}
	kept := all[:0]
	for i, c := range all {
		if !joined[i] {
			kept = append(kept, c)
		}
	}
	return kept
}

// diffEnv compares two lists of KEY=VALUE.
func diffEnv(a, b []string) []turnstone.EnvChange {
	values := func(list []string) map[string]string {
		m := map[string]string{}
		for _, kv := range list {
			name, value, _ := strings.Cut(kv, "=")
			m[name] = value
		}
		return m
	}
	before, after := values(a), values(b)
	changes := []turnstone.EnvChange{}
	for name, value := range before {
		if now, ok := after[name]; !ok {
			changes = append(changes, turnstone.EnvChange{Name: name, Old: &value})
		} else if now != value {
			changes = append(changes, turnstone.EnvChange{Name: name, Old: &value, New: &now})
		}
	}
	for name, value := range after {
		if _, ok := before[name]; !ok {
			changes = append(changes, turnstone.EnvChange{Name: name, New: &value})
		}
	}
	slices.SortFunc(changes, func(a, b turnstone.EnvChange) int {
		return strings.Compare(a.Name,
			b.Name)
	})
	return changes
}
