package mcpdoor

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
)

type logIn struct {
	Turn    string `json:"turn"`
	Limit   int    `json:"limit"`
	Session string `json:"session"`
}

type logOut struct {
	Session  string            `json:"session"`
	Turns    []logged          `json:"turns"`
	Branches map[string]string `json:"branches"` // the ID of each one's newest turn
}

type logged struct {
	Turn   turnstone.TurnID `json:"turn"`
	Number int              `json:"number"`
	Branch string           `json:"branch"`
	Title  string           `json:"title,omitempty"`
	Result string           `json:"result"`
}

// defaultTurns is how many turns log lists.
const defaultTurns = 20

// log lists turns.
func log(ctx context.Context, c call, in logIn) (out logOut, _ []mcp.Content, err error) {
	ref, err := c.target(in.Session, "").ref("turn", in.Turn)
	if err != nil {
		return out, nil, err
	}
	if in.Limit == 0 {
		in.Limit = defaultTurns
	}
	if in.Limit < 1 || in.Limit > maxList {
		return out, nil, argument("limit", "is not 1 to %d", maxList)
	}
	g, err := c.place.Turns.Log(ctx, ref, in.Limit)
	if err != nil {
		return out, nil, err
	}
	out = logOut{Session: g.Session.Label(), Turns: []logged{}, Branches: map[string]string{}}
	for _, t := range g.Turns[:min(len(g.Turns), in.Limit)] {
		result := string(t.Result)
		if t.Status == turnstone.TurnRunning {
			result = string(t.Status)
		}
		out.Turns = append(out.Turns, logged{t.ID, t.Number, t.Branch, cut(t.Title, maxRef), result})
	}
	for _, b := range g.Branches[:min(len(g.Branches), maxList)] {
		out.Branches[b.Name] = string(b.Head)
	}
	return out, nil, nil
}

type compareIn struct {
	Turns   []string `json:"turns"`
	Session string   `json:"session"`
}

type compareOut struct {
	Turns []compared `json:"turns"`
	// Files are those that a turn changed, each with its changes in the order of the turns.
	Files map[string][]string `json:"files"`
	More  int                 `json:"more,omitempty"`
}

type compared struct {
	Turn   turnstone.TurnID `json:"turn"`
	Number int              `json:"number"`
	Branch string           `json:"branch"`
	Result turnstone.Result `json:"result"`
	Millis int64            `json:"duration_ms"`
	// Steps are "NAME: STATUS: the last line of the output".
	Steps []string `json:"steps"`
}

// Bounds of a comparison.
const (
	maxCompared = 10
	maxSteps    = 50
)

// compare lays turns side by side.
func compare(ctx context.Context, c call, in compareIn) (out compareOut, _ []mcp.Content, err error) {
	if len(in.Turns) < 2 || len(in.Turns) > maxCompared {
		return out, nil, argument("turns", "are %d, not 2 to %d", len(in.Turns), maxCompared)
	}
	var refs []string
	for _, text := range in.Turns {
		ref, err := c.target(in.Session, "").ref("turns", text)
		if err != nil {
			return out, nil, err
		}
		refs = append(refs, ref)
	}
	r, err := c.place.Turns.Compare(ctx, refs)
	if err != nil {
		return out, nil, err
	}
	out = compareOut{Files: map[string][]string{}, More: r.More}
	for _, t := range r.Turns {
		column := compared{t.ID, t.Number, t.Branch, t.Result, t.Millis, []string{}}
		for _, s := range t.Steps[:min(len(t.Steps), maxSteps)] {
			column.Steps = append(column.Steps, strings.TrimSuffix(cut(fmt.Sprintf("%s: %s: %s", s.Name,
				s.Status, s.Output), maxRef), ": "))
		}
		out.Turns = append(out.Turns, column)
	}
	for _, f := range r.Files {
		if len(out.Files) < maxList {
			out.Files[cut(f.Path, maxPath)] = f.Changes
		} else {
			out.More++
		}
	}
	return out, nil, nil
}

type turnIn struct {
	Turn    string `json:"turn"`
	Session string `json:"session"`
}

type replayOut struct {
	Same        bool     `json:"same"`
	Differences []string `json:"differences"`
	More        int      `json:"more,omitempty"`
}

// replay runs a turn again.
func replay(ctx context.Context, c call, in turnIn) (out replayOut, _ []mcp.Content, err error) {
	ref, err := c.target(in.Session, "").ref("turn", in.Turn)
	if err != nil {
		return out, nil, err
	}
	p := c.newProgress(ctx, 0)
	defer p.end()
	r, err := c.place.Turns.Replay(ctx, ref, executor.ReplayOptions{}, observer(p))
	if err != nil {
		return out, nil, err
	}
	out = replayOut{Same: r.Same, Differences: []string{}, More: r.More}
	add := func(format string, args ...any) {
		if len(out.Differences) < maxList {
			out.Differences = append(out.Differences, cut(fmt.Sprintf(format, args...), maxRef))
		} else {
			out.More++
		}
	}
	for _, s := range r.Steps {
		add("step %s: %s", s.Name, strings.Join(s.What, ", "))
	}
	for _, f := range r.Changes {
		add("%s: %s", f.Path, f.What)
	}
	for _, name := range r.Env {
		add("variable %s", name)
	}
	if r.Cwd {
		add("working directory")
	}
	return out, nil, nil
}

type verifyOut struct {
	OK       bool     `json:"ok"`
	Signed   bool     `json:"signed"`
	Turns    int      `json:"turns"`
	Problems []string `json:"problems"`
	More     int      `json:"more,omitempty"`
}

// verify checks the signatures of a turn and of its ancestors, and the data that they need.
func verify(ctx context.Context, c call, in turnIn) (out verifyOut, _ []mcp.Content, err error) {
	ref, err := c.target(in.Session, "").ref("turn", in.Turn)
	if err != nil {
		return out, nil, err
	}
	r, err := c.place.Turns.Verify(ctx, turnstone.VerifyRequest{Ref: ref})
	if err != nil {
		return out, nil, err
	}
	out = verifyOut{OK: r.OK, Signed: r.Signed, Turns: len(r.Turns), Problems: []string{}}
	for _, p := range r.Problems {
		if len(out.Problems) < maxList {
			out.Problems = append(out.Problems, cut(p.Where+": "+p.Error, maxRef))
		} else {
			out.More++
		}
	}
	return out, nil, nil
}
