package repo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo/trace"
	"turnstone.dev/turnstone/internal/store/tree"
)

func sortByUse(all []turnstone.SessionInfo) {
	slices.SortFunc(all, func(a, b turnstone.SessionInfo) int {
		return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.ID, b.ID))
	})
}

// Show returns the description of the turn that ref names.
func (x *Repo) Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	g, err := cs.DB.Graph(ctx, t.Session)
	if err != nil {
		return nil, err
	}
	i := &turnstone.TurnInfo{Turn: t, Session: g.Session, Heads: []string{}, Tags: []string{},
		Children: []int{}, Kept: x.Dir.Path("turns", string(t.ID))}
	for _, b := range g.Branches {
		if b.Head == t.ID {
			i.Heads = append(i.Heads, b.Name)
		}
	}
	for _, tag := range g.Tags {
		if tag.Turn == t.ID {
			i.Tags = append(i.Tags, tag.Name)
		}
	}
	for _, other := range g.Turns {
		if slices.Contains(other.Parents, t.ID) {
			i.Children = append(i.Children, other.Number)
		}
	}
	slices.Sort(i.Children)
	if t.Record != "" {
		if i.Record, err = cs.Record(ctx, t); err != nil {
			return nil, err
		}
	}
	if t.State != "" {
		if i.State, err = cs.State(ctx, t.State); err != nil {
			return nil, err
		}
	}
	if t.Record == "" {
		c, err := cs.DB.Checkpoint(ctx, t.ID)
		if err != nil {
			return nil, err
		}
		if c != nil {
			rec, err := cs.Record(ctx, c.As(t))
			if err != nil {
				return nil, err
			}
			i.Checkpoint = &turnstone.CheckpointInfo{Step: c.Step, At: c.At, State: c.State,
				Resumed: c.Resumed, Timeout: turnstone.Millis(rec.Timeout), Machine: turnstone.Machine{CPUs: rec.Shape.CPUs,
					Memory: rec.Shape.Memory, Disk: rec.Shape.Disk}}
		}
	}
	return i, nil
}

// Receipt returns the receipt of the turn that ref names, with its evidence. That of a running turn
// was written before its current step, that of an interrupted one before its last; none is signed.
func (x *Repo) Receipt(ctx context.Context, ref string) ([]byte, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	if t.Status == turnstone.TurnRunning {
		if text, err := cs.lastReceipt(t); err == nil {
			return text, nil
		}
	}
	if t.Interrupted() {
		c, err := cs.DB.Checkpoint(ctx, t.ID)
		if err != nil {
			return nil, err
		}
		if c != nil {
			t = c.As(t)
		} else if cs.Sealed() {
			return cs.lastReceipt(t)
		}
	}
	rec, err := cs.Record(ctx, t)
	if err != nil {
		return nil, err
	}
	// Outputs stand in it shortened, so it is not much longer than its document.
	text, err := cs.Read(ctx, rec.Receipt, 8*document.MaxFile)
	if err != nil || t.Envelope == "" {
		return text, err
	}
	envelope, err := cs.Store.Get(ctx, t.Envelope)
	if err != nil {
		return nil, err
	}
	return document.WithEvidence(text, envelope), nil
}

// Trace calls each for every line of the trace of the turn that ref names. A turn that an older
// program kept, and a merge, have none: kind KindNotFound.
func (x *Repo) Trace(ctx context.Context, ref string, each func(turnstone.TraceLine) error) error {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	rec, err := cs.Record(ctx, t)
	if err != nil {
		return err
	}
	return cs.ReadTrace(ctx, rec, each)
}

// ReadTrace calls each for every line of the trace that rec names.
func (cs *ContextStore) ReadTrace(ctx context.Context, rec *turnstone.TurnRecord,
	each func(turnstone.TraceLine) error) error {
	if rec.Trace == nil {
		e := turnstone.Errorf("executor.trace", turnstone.KindNotFound,
			fmt.Sprintf("turn %d (%s)", rec.Number, rec.ID), "has no trace")
		if e.Hint = "run the document again: an older program kept this turn"; rec.Kind ==
			turnstone.TurnKindMerge {
			e.Hint = "a merge runs no commands"
		}
		return e
	}
	in, err := cs.Store.OpenContent(ctx, *rec.Trace)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return trace.Read(in, func(l turnstone.TraceLine) error {
		if l.Turn != nil && (l.Turn.ID != rec.ID || l.Turn.Session != rec.Session) {
			return turnstone.Errorf("executor.trace", turnstone.KindIntegrity, string(rec.ID),
				"its trace is that of turn %d (%s)", l.Turn.Number, l.Turn.ID)
		}
		return each(l)
	})
}

func fileInfo(name string, e *tree.Entry) turnstone.FileInfo {
	return turnstone.FileInfo{Path: name, Type: typeName(e.Type), Mode: turnstone.Mode(e.Mode),
		UID: e.UID,
		GID: e.GID, Size: e.Size,
		MTime: time.Unix(e.MTime.Sec, int64(e.MTime.Nsec)).UTC(), Target: e.Target,
		Digest: e.Content.Digest}
}

func typeName(t tree.Type) string {
	switch t {
	case tree.Dir:
		return "dir"
	case tree.File:
		return "file"
	case tree.Symlink:
		return "symlink"
	case tree.Char:
		return "char"
	case tree.Block:
		return "block"
	case tree.FIFO:
		return "fifo"
	}
	return fmt.Sprintf("type-%d", t)
}

// entry finds the file at name in the state of the turn that ref names, and its path without
// symlinks. A relative name is below the state's working directory.
func (x *Repo) entry(ctx context.Context, ref, name string) (cs *ContextStore,
	st *turnstone.TurnState, real string, e *tree.Entry, err error) {
	if cs, _, st, err = x.ResolveState(ctx, ref); err != nil {
		return cs, st, "", nil, err
	}
	if !path.IsAbs(name) {
		name = path.Join("/", st.Cwd, name)
	}
	real, e, err = tree.Resolve(ctx, cs.Store, st.Tree, path.Clean(name))
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		err = turnstone.NewError("executor.open", turnstone.KindNotFound, ref, err).
			WithHint("list all files with turn ls " + ref + ":/")
	}
	return cs, st, real, e, err
}

// ListFiles lists the directory at name in the state of the turn that ref names, or the single file
// at name. A relative name is below the working directory that the turn left. A symlink at name is
// followed. recursive includes everything below it.
func (x *Repo) ListFiles(ctx context.Context, ref, name string, recursive bool,
	each func(turnstone.FileInfo) error) error {
	if each == nil {
		return turnstone.Errorf("executor.open", turnstone.KindInvalid, ref,
			"no function receives the files").
			WithHint("pass a function for each file")
	}
	cs, st, real, e, err := x.entry(ctx, ref, name)
	if err != nil {
		return err
	}
	if e.Type != tree.Dir {
		return each(fileInfo(real, e))
	}
	if recursive {
		return tree.Walk(ctx, cs.Store, st.Tree, real, func(p string, e *tree.Entry) error {
			if p == real {
				return nil
			}
			return each(fileInfo(p, e))
		})
	}
	dir, err := tree.GetDirectory(ctx, cs.Store, e.Tree)
	if err != nil {
		return err
	}
	for i := range dir {
		if err := each(fileInfo(path.Join(real, dir[i].Name), &dir[i])); err != nil {
			return err
		}
	}
	return nil
}

// OpenFile opens the file at name in the state of the turn that ref names; symlinks are followed in
// the state. Every byte is verified before it is read.
func (x *Repo) OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error) {
	cs, st, real, e, err := x.entry(ctx, ref, name)
	if err != nil {
		return nil, err
	}
	if e.Type != tree.File {
		what := typeName(e.Type)
		if e.Type == tree.Dir {
			what = "directory"
		}
		return nil, turnstone.Errorf("executor.open", turnstone.KindInvalid, real,
			"is a %s, not a file", what).
			WithHint("list a directory with turn ls, or copy it with turn cp")
	}
	return cs.openContent(ctx, st, real, e.Content)
}

// openContent opens the content of the file at path in the state st. A missing content is an error
// of kind Unavailable: it may be in a template that is missing.
func (cs *ContextStore) openContent(ctx context.Context, st *turnstone.TurnState, path string,
	c turnstone.Content) (io.ReadCloser, error) {
	in, err := cs.Store.OpenContent(ctx, c)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return in, err
	}
	return nil, turnstone.Errorf("executor.open", turnstone.KindUnavailable, path,
		"its content is missing: %w", err).
		WithHint(fmt.Sprintf("build the template again with turn template build %.200s if the "+
			"content is in it; turn fsck lists all missing data", st.Image))
}
