package repo

import (
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

// DiffRequest describes a comparison.
type DiffRequest struct {
	From string // a turn
	// a turn; without a session, such as "explore", it is in From's; empty: compare From with its
	// parent's state
	To   string
	Stat bool // count the lines of texts
	Text bool // create patches of texts
}

// A StateDiff is the difference of two states.
type StateDiff struct {
	From  DiffSide     `json:"from"`
	To    DiffSide     `json:"to"`
	Files []FileChange `json:"files"` // by path
	Env   []EnvChange  `json:"env"`
	Cwd   *CwdChange   `json:"cwd,omitempty"` // nil if equal
}

// A DiffSide is one of the two states.
type DiffSide struct {
	Turn   turnstone.TurnID `json:"turn,omitempty"` // empty: the template's state, before any turn
	Number int              `json:"number,omitempty"`
	FSHash turnstone.Digest `json:"fs_hash"`
}

// A ChangeStatus is the kind of a path's change, as in git.
type ChangeStatus string

// The kinds of changes.
const (
	Added    ChangeStatus = "A"
	Modified ChangeStatus = "M" // content or attributes
	Deleted  ChangeStatus = "D"
	Retyped  ChangeStatus = "T" // for example from a file to a symlink
	Renamed  ChangeStatus = "R" // the same content under another name
)

// A FileChange is a path that differs. Timestamps are not compared.
type FileChange struct {
	Path    string       `json:"path"`
	Status  ChangeStatus `json:"status"`
	OldPath string       `json:"old_path,omitempty"` // of a renamed file
	Old     *FileInfo    `json:"old,omitempty"`
	New     *FileInfo    `json:"new,omitempty"`
	// of a modified path: "content", "mode", "owner", "xattrs", "target", "device", "links"
	What   []string `json:"what,omitempty"`
	Plus   int      `json:"plus,omitempty"`  // lines, if requested
	Minus  int      `json:"minus,omitempty"` // lines
	Binary bool     `json:"binary,omitempty"`
	Patch  string   `json:"patch,omitempty"` // unified, as git writes it

	old, new *tree.Entry
}

// An EnvChange is one variable that differs.
type EnvChange struct {
	Name string  `json:"name"`
	Old  *string `json:"old"` // null if not set
	New  *string `json:"new"`
}

// A CwdChange is a working directory that differs.
type CwdChange struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// Diff compares the states of two turns by their trees only: it skips equal parts.
func (x *Repo) Diff(ctx context.Context, req DiffRequest) (*StateDiff, error) {
	cs, to, err := x.Resolve(ctx, req.From)
	if err != nil {
		return nil, err
	}
	if req.To == "" {
		return x.diffToParent(ctx, cs, to, req)
	}
	from := to
	if to, err = cs.DB.ResolveIn(ctx, from.Session, req.To); err != nil {
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
	req DiffRequest) (*StateDiff, error) {
	b, err := cs.StateOf(ctx, t)
	if err != nil {
		return nil, err
	}
	var a *State
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
func (x *Repo) templateState(ctx context.Context, cs *ContextStore, image string) (*State, error) {
	tmpl, err := x.BuiltTemplate(ctx, image)
	if err != nil {
		return nil, err
	}
	ref, err := cs.templateTree(ctx, tmpl)
	if err != nil {
		return nil, err
	}
	return &State{Format: StateFormat, Image: image, Tree: ref, Env: tmpl.EnvList(),
		Cwd: tmpl.Workdir}, nil
}

// BuiltTemplate returns a template without building it.
func (x *Repo) BuiltTemplate(ctx context.Context, name string) (*template.Template, error) {
	details, err := x.Templates().Show(ctx, name)
	if err != nil {
		return nil, err
	}
	if details.Template == nil {
		return nil, turnstone.Errorf("executor.template", turnstone.KindUnavailable,
			"template "+name,
			"is not built").WithHint("turn template build " + name)
	}
	return details.Template, nil
}

// diff compares two states.
func (cs *ContextStore) diff(ctx context.Context, a, b *State,
	req DiffRequest) (*StateDiff, error) {
	d := &StateDiff{From: DiffSide{FSHash: a.Tree.Hash}, To: DiffSide{FSHash: b.Tree.Hash},
		Files: []FileChange{}, Env: diffEnv(a.Env, b.Env)}
	if a.Cwd != b.Cwd {
		d.Cwd = &CwdChange{a.Cwd, b.Cwd}
	}
	for c, err := range tree.Diff(ctx, cs.Store, a.Tree, b.Tree) {
		if err != nil {
			return nil, err
		}
		if f, differs := fileChange(c); differs {
			d.Files = append(d.Files, f)
		}
	}
	d.Files = findRenames(d.Files)
	if !req.Stat && !req.Text {
		return d, nil
	}
	for i := range d.Files {
		if err := cs.compareText(ctx, &d.Files[i], req.Text); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// fileChange returns c as a change for users: timestamps alone are not a change.
func fileChange(c tree.Change) (f FileChange, differs bool) {
	f = FileChange{Path: c.Path, old: c.Old, new: c.New}
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
		f.Status, f.What = Modified, []string{"links"}
	case c.Old == nil:
		f.Status = Added
	case c.New == nil:
		f.Status = Deleted
	case c.Old.Type != c.New.Type:
		f.Status = Retyped
	default:
		f.Status = Modified
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
func findRenames(all []FileChange) []FileChange {
	gone := map[turnstone.Digest][]int{}
	for i, c := range all {
		if c.Status == Deleted && c.old.Type == tree.File && c.old.Size > 0 {
			gone[c.old.Content.Digest] = append(gone[c.old.Content.Digest], i)
		}
	}
	joined := map[int]bool{}
	for i := range all {
		c := &all[i]
		if c.Status != Added || c.new.Type != tree.File {
			continue
		}
		from := gone[c.new.Content.Digest]
		if len(from) == 0 {
			continue
		}
		k := max(0, slices.IndexFunc(from, func(j int) bool { return path.Base(all[j].Path) == path.Base(c.Path) }))
		j := from[k]
		gone[c.new.Content.Digest] = slices.Delete(from, k, k+1)
		joined[j] = true
		c.Status, c.OldPath, c.Old, c.old = Renamed, all[j].Path, all[j].Old, all[j].old
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
func diffEnv(a, b []string) []EnvChange {
	values := func(list []string) map[string]string {
		m := map[string]string{}
		for _, kv := range list {
			name, value, _ := strings.Cut(kv, "=")
			m[name] = value
		}
		return m
	}
	before, after := values(a), values(b)
	changes := []EnvChange{}
	for name, value := range before {
		if now, ok := after[name]; !ok {
			changes = append(changes, EnvChange{Name: name, Old: &value})
		} else if now != value {
			changes = append(changes, EnvChange{Name: name, Old: &value, New: &now})
		}
	}
	for name, value := range after {
		if _, ok := before[name]; !ok {
			changes = append(changes, EnvChange{Name: name, New: &value})
		}
	}
	slices.SortFunc(changes, func(a, b EnvChange) int { return strings.Compare(a.Name, b.Name) })
	return changes
}

// String returns the change as one line: "M /workspace/x".
func (c FileChange) String() string {
	if c.Status == Renamed {
		return fmt.Sprintf("R %s -> %s", c.OldPath, c.Path)
	}
	return fmt.Sprintf("%s %s", c.Status, c.Path)
}
