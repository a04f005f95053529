package compare

import (
	"context"
	"maps"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
)

// maxFiles bounds the paths of a comparison.
const maxFiles = 1000

// Turns lays the turns that refs name side by side: their results, and what each changed.
func Turns(ctx context.Context, x *repo.Repo, refs []string) (*turnstone.CompareReport, error) {
	cs, first, err := x.Resolve(ctx, refs[0])
	if err != nil {
		return nil, err
	}
	rep := &turnstone.CompareReport{Turns: []turnstone.ComparedTurn{},
		Files: []turnstone.ComparedFile{}}
	files := map[string]*turnstone.ComparedFile{}
	for i, ref := range refs {
		t, err := cs.Within(ctx, first.Session, ref)
		if err != nil {
			return nil, err
		}
		s, err := sideOf(ctx, cs, t)
		if err != nil {
			return nil, err
		}
		one, err := column(ctx, cs, s)
		if err != nil {
			return nil, err
		}
		rep.Turns = append(rep.Turns, one)
		if t.State == "" {
			continue
		}
		d, err := x.Diff(ctx, turnstone.DiffRequest{From: string(t.ID)})
		if turnstone.KindOf(err) == turnstone.KindUnavailable {
			continue // a first turn, whose template is not built here
		}
		if err != nil {
			return nil, err
		}
		for _, f := range d.Files {
			row := files[f.Path]
			if row == nil {
				row = &turnstone.ComparedFile{Path: f.Path,
					Changes: make([]string, len(refs)),
					Digests: make([]turnstone.Digest, len(refs))}
				files[f.Path] = row
			}
			if row.Changes[i] = string(f.Status); f.New != nil {
				row.Digests[i] = f.New.Digest
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if len(rep.Files) == maxFiles {
			rep.More = len(files) - maxFiles
			break
		}
		rep.Files = append(rep.Files, *files[path])
	}
	return rep, nil
}

// column returns what is compared of one turn.
func column(ctx context.Context, cs *repo.ContextStore, s *side) (c turnstone.ComparedTurn,
	err error) {
	t, rec := s.turn, s.rec
	in, err := cs.DB.Find(ctx, string(t.Session))
	if err != nil {
		return c, err
	}
	c = turnstone.ComparedTurn{ID: t.ID, Session: in.Label(), Number: t.Number, Branch: t.Branch,
		Title: t.Title, Result: rec.Result, Error: rec.Error, Millis: rec.Millis, Layer: rec.Layer,
		Steps: []turnstone.ComparedStep{}, Determinism: rec.Determinism}
	if t.State != "" {
		st, err := cs.State(ctx, t.State)
		if err != nil {
			return c, err
		}
		c.FSHash = st.Tree.Hash
	}
	for _, one := range rec.Steps {
		step := turnstone.ComparedStep{Name: one.Name, Status: one.Status, ExitCode: one.ExitCode}
		if ran := s.steps[one.Name]; ran != nil {
			step.Millis = &ran.Millis
		}
		if one.Stdout != nil {
			step.Bytes = one.Stdout.Size
		}
		if step.Output, err = lastLine(ctx, cs, one.Stdout); err != nil {
			return c, err
		}
		c.Steps = append(c.Steps, step)
	}
	return c, nil
}
