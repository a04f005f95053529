package mcpdoor

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
)

type snapshotIn struct {
	Session string `json:"session"`
	Branch  string `json:"branch"`
}

type snapshotOut struct {
	Changed bool             `json:"changed"` // false: there is no new turn
	Turn    turnstone.TurnID `json:"turn,omitempty"`
	Session string           `json:"session"`
	Number  int              `json:"number,omitempty"`
	Branch  string           `json:"branch"`
}

// snapshot keeps the work in a sandbox as a turn.
func snapshot(ctx context.Context, c call, in snapshotIn) (out snapshotOut, _ []mcp.Content,
	err error) {
	t := c.target(in.Session, in.Branch)
	if err := t.named(); err != nil {
		return out, nil, err
	}
	p := c.newProgress(ctx, 0)
	defer p.end()
	r, err := c.commit(ctx, t)
	if err != nil {
		return out, nil, err
	}
	out = snapshotOut{Session: t.session, Branch: t.branch}
	if r != nil {
		out = snapshotOut{Changed: true, Turn: r.ID, Session: r.Session, Number: r.Number,
			Branch: r.Branch}
	}
	return out, nil, nil
}

// commitAll keeps the work in all sandboxes of a session as turns, for what is about its branches.
func (c *connection) commitAll(ctx context.Context, session string) error {
	var all []target
	c.boxes.mu.Lock()
	for t, b := range c.boxes.all {
		if t.session == session && b.id != "" {
			all = append(all, t)
		}
	}
	c.boxes.mu.Unlock()
	for _, t := range all {
		if _, err := c.commit(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

type forkIn struct {
	Turn    string `json:"turn"`
	Branch  string `json:"branch"`
	Session string `json:"session"`
}

type forkOut struct {
	Branch string           `json:"branch"`
	Turn   turnstone.TurnID `json:"turn"`
}

// fork makes a branch.
func fork(ctx context.Context, c call, in forkIn) (out forkOut, _ []mcp.Content, err error) {
	if err := need("branch", in.Branch); err != nil {
		return out, nil, err
	}
	t := c.target(in.Session, "")
	ref, err := t.ref("turn", in.Turn)
	if err != nil {
		return out, nil, err
	}
	if err := c.commitAll(ctx, t.session); err != nil {
		return out, nil, err
	}
	b, err := c.place.Turns.Fork(ctx, ref, in.Branch)
	return forkOut{b.Name, b.Head}, nil, err
}

type diffIn struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Patch   bool   `json:"patch"`
	Session string `json:"session"`
}

type diffOut struct {
	Files []change `json:"files"`
	More  int      `json:"more,omitempty"`
	Env   []string `json:"env"`
	// Patch is in git's form.
	Patch       string `json:"patch,omitempty"`
	PatchBase64 []byte `json:"patch_base64,omitempty"`
	PatchURI    string `json:"patch_uri,omitempty"`
	Note        string `json:"note,omitempty"`
}

type change struct {
	Path   string                 `json:"path"`
	Status turnstone.ChangeStatus `json:"status"`
}

// diff compares the files of two turns.
func diff(ctx context.Context, c call, in diffIn) (out diffOut, _ []mcp.Content, err error) {
	t := c.target(in.Session, "")
	from, err := t.ref("from", in.From)
	if err != nil {
		return out, nil, err
	}
	to := in.To
	if to != "" {
		if to, err = t.ref("to", to); err != nil {
			return out, nil, err
		}
	}
	d, err := c.place.Turns.Diff(ctx, turnstone.DiffRequest{From: from, To: to, Text: in.Patch})
	if err != nil {
		return out, nil, err
	}
	out = diffOut{Files: []change{}, Env: []string{}}
	patch := &output{}
	for _, f := range d.Files {
		if len(out.Files) < maxList {
			out.Files = append(out.Files, change{cut(f.Path, maxPath), f.Status})
		} else {
			out.More++
		}
		_, _ = patch.Write([]byte(f.Patch)) // it takes all
	}
	for _, e := range d.Env[:min(len(d.Env), maxList)] {
		out.Env = append(out.Env, cut(e.Name, maxRef))
	}
	p := c.show("patch", patch)
	out.Patch, out.PatchBase64, out.PatchURI, out.Note = p.text, p.bytes, p.uri, p.note
	return out, nil, nil
}

type mergeIn struct {
	From    string `json:"from"`
	Into    string `json:"into"`
	Prefer  string `json:"prefer"`
	DryRun  bool   `json:"dry_run"`
	Session string `json:"session"`
}

type mergeOut struct {
	Outcome   turnstone.MergeOutcome `json:"outcome"`
	Turn      turnstone.TurnID       `json:"turn,omitempty"`
	Number    int                    `json:"number,omitempty"`
	Branch    string                 `json:"branch,omitempty"`
	Conflicts []conflict             `json:"conflicts"`
	More      int                    `json:"more,omitempty"`
}

type conflict struct {
	Path string                 `json:"path"`
	Kind turnstone.ConflictKind `json:"kind"`
}

// merge merges a turn into a branch.
func merge(ctx context.Context, c call, in mergeIn) (out mergeOut, _ []mcp.Content, err error) {
	if err := need("from", in.From); err != nil {
		return out, nil, err
	}
	side := turnstone.SideNone
	if in.Prefer != "" {
		if side, err = turnstone.ParseSide(in.Prefer); err != nil {
			return out, nil, turnstone.NewError("mcp.merge", turnstone.KindInvalid, "prefer", err)
		}
	}
	t := c.target(in.Session, in.Into)
	if err := t.named(); err != nil {
		return out, nil, err
	}
	from, err := t.ref("from", in.From)
	if err != nil {
		return out, nil, err
	}
	if err := c.commitAll(ctx, t.session); err != nil {
		return out, nil, err
	}
	var r *turnstone.MergeReport
	act := func() error {
		r, err = c.place.Turns.Merge(ctx, executor.MergeRequest{From: from, Into: t.branch,
			Session: t.session, Default: side, DryRun: in.DryRun})
		return err
	}
	if in.DryRun {
		err = act()
	} else {
		err = c.settled(ctx, t, act)
	}
	if err != nil {
		return out, nil, err
	}
	out = mergeOut{Outcome: r.Outcome, Turn: r.ID, Number: r.Number, Branch: r.Branch,
		Conflicts: []conflict{}}
	for _, f := range r.Conflicts {
		if len(out.Conflicts) < maxList {
			out.Conflicts = append(out.Conflicts, conflict{cut(f.Path, maxPath), f.Kind})
		} else {
			out.More++
		}
	}
	return out, nil, nil
}
