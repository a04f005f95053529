package ui

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

// maxDocument bounds a document in bytes.
const maxDocument = 1 << 20

// noFolder is no folder: a document of the page has none.
const noFolder = "/dev/null"

type runIn struct {
	Document string `json:"document"`
	Session  string `json:"session"` // empty: an anonymous session
	Branch   string `json:"branch"`  // empty: main
}

// run starts a turn. Its document is as one that came through a pipe: it reads no file of this
// machine, and the configuration alone grants what it asks for.
func (s *Server) run(_ context.Context, in runIn) (*job, error) {
	if len(in.Document) > maxDocument {
		return nil, invalid("the document", "has %d bytes, and may have %d", len(in.Document), maxDocument)
	}
	for what, name := range map[string]string{"session": in.Session, "branch": in.Branch} {
		if name != "" {
			if err := checkRef(what, name); err != nil {
				return nil, err
			}
		}
	}
	doc, err := document.Parse("document.md", []byte(in.Document))
	if err != nil {
		return nil, err
	}
	if files := doc.Front.Files; len(files) > 0 {
		return nil, turnstone.Errorf("ui.run", turnstone.KindInvalid, "files: "+files[0],
			"is a file of this machine, which no document of the page reads").
			WithHint("use turn run for documents with files:")
	}
	var steps []string
	for _, step := range doc.Steps {
		steps = append(steps, step.Name)
	}
	req := executor.Request{Document: doc, Piped: true, Dir: noFolder, Session: in.Session,
		Branch: in.Branch}
	return s.jobs.start("run", in.Session, steps, func(ctx context.Context, j *job) (any, error) {
		r, err := s.place.Runner.Run(ctx, req, j)
		if r == nil {
			return nil, err
		}
		return turnOut{r.ID, r.Session, r.Number, r.Branch, r.Diverged, r.Result, cut(r.Error, maxText),
			cut(r.Hint, maxText)}, err
	})
}

// A turnOut is a turn as the result of a job.
type turnOut struct {
	ID       turnstone.TurnID `json:"id"`
	Session  string           `json:"session"`
	Number   int              `json:"number"`
	Branch   string           `json:"branch"`
	Diverged bool             `json:"diverged"`
	Result   turnstone.Result `json:"result"`
	Error    string           `json:"error,omitempty"`
	Hint     string           `json:"hint,omitempty"`
}

type refIn struct {
	Ref string `json:"ref"`
}

func (s *Server) replay(_ context.Context, in refIn) (*job, error) {
	if err := checkRef("turn", in.Ref); err != nil {
		return nil, err
	}
	return s.jobs.start("replay", in.Ref, nil, func(ctx context.Context, j *job) (any, error) {
		r, err := s.place.Runner.Replay(ctx, in.Ref, executor.ReplayOptions{}, j)
		if r == nil {
			return nil, err
		}
		r.Turn = nil // its receipt is long
		if len(r.Changes) > maxEntries {
			r.More += len(r.Changes) - maxEntries
			r.Changes = r.Changes[:maxEntries]
		}
		return r, err
	})
}

func (s *Server) verify(_ context.Context, in refIn) (*job, error) {
	if err := checkRef("turn", in.Ref); err != nil {
		return nil, err
	}
	return s.jobs.start("verify", in.Ref, nil, func(ctx context.Context, _ *job) (any, error) {
		r, err := s.place.Evidence.Verify(ctx, turnstone.VerifyRequest{Ref: in.Ref})
		if r == nil {
			return nil, err
		}
		r.Turns, r.Problems = r.Turns[:min(len(r.Turns), maxEntries)],
			r.Problems[:min(len(r.Problems), maxEntries)]
		return r, err
	})
}

type mergeIn struct {
	Session string `json:"session"`
	From    string `json:"from"`
	Into    string `json:"into"`
	DryRun  bool   `json:"dry_run"`
	Prefer  string `json:"prefer"` // "ours", "theirs" or empty
	// Paths are the choices for conflicts: "ours" or "theirs".
	Paths   map[string]string `json:"paths"`
	Markers bool              `json:"markers"`
}

func (s *Server) merge(_ context.Context, in mergeIn) (*job, error) {
	req := executor.MergeRequest{Session: in.Session, From: in.From, Into: in.Into, DryRun: in.DryRun,
		Markers: in.Markers, Paths: map[string]turnstone.Side{}}
	for what, name := range map[string]string{"session": in.Session, "from": in.From, "into": in.Into} {
		if err := checkRef(what, name); err != nil {
			return nil, err
		}
	}
	if len(in.Paths) > maxEntries {
		return nil, invalid("paths", "are more than %d", maxEntries)
	}
	var err error
	if in.Prefer != "" {
		if req.Default, err = turnstone.ParseSide(in.Prefer); err != nil {
			return nil, turnstone.NewError("ui.merge", turnstone.KindInvalid, "prefer", err)
		}
	}
	for path, side := range in.Paths {
		if req.Paths[path], err = turnstone.ParseSide(side); err != nil {
			return nil, turnstone.NewError("ui.merge", turnstone.KindInvalid, cut(path, maxRef), err)
		}
	}
	what := in.From + " into " + in.Session + "@" + in.Into
	return s.jobs.start("merge", what, nil, func(ctx context.Context, _ *job) (any, error) {
		r, err := s.place.Changer.Merge(ctx, req)
		if r == nil {
			return nil, err
		}
		r.Receipt = ""
		return r, err
	})
}

type forkIn struct {
	Ref    string `json:"ref"`
	Branch string `json:"branch"`
}

func (s *Server) fork(ctx context.Context, in forkIn) (turnstone.Branch, error) {
	if err := checkRef("turn", in.Ref); err != nil {
		return turnstone.Branch{}, err
	}
	if err := checkRef("branch", in.Branch); err != nil {
		return turnstone.Branch{}, err
	}
	return s.place.Changer.Fork(ctx, in.Ref, in.Branch)
}
