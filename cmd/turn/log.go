package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type logCmd struct {
	Ref string `arg:"" help:"Session or turn: SESSION, SESSION@N, or an ID."`

	Graph bool `help:"Draw the tree of turns."`
	Heads bool `help:"Print the signed log of the branches' heads."`
	Max   int  `short:"n" help:"Print at most this many turns (default: all)." placeholder:"N"`
	JSON  bool `name:"json" help:"Print the turns, branches and tags as JSON, or the heads."`
}

// Help returns the text below the command's summary.
func (c *logCmd) Help() string {
	return `The name of a session lists all its turns, on all branches; a turn lists itself and
its ancestors. The newest turn comes first. Each line has the number of the turn,
the beginning of its ID, its branches and tags, its result, its age and its title.

--heads prints the log of heads: each change of a branch since the session began, in
order, linked and signed. Compare its last line with that of another machine: if they
differ, and neither log has the other's line, the history was rewritten.`
}

// Examples returns command lines for the help.
func (c *logCmd) Examples() []string {
	return []string{
		"turn log research",
		"turn log --graph research",
		"turn log -n 5 research@explore",
	}
}

// Validate is called by kong.
func (c *logCmd) Validate() error {
	if c.Heads && (c.Graph || c.Max != 0) {
		return errors.New("--heads cannot be used with --graph or -n")
	}
	return nil
}

// Run lists the turns.
func (c *logCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Ref}, func(ctx context.Context, x cli.Executor) error {
		log, err := x.Log(ctx, c.Ref, c.Max)
		if err != nil || !c.Heads {
			return a.Result(log, err, func(w io.Writer) { c.print(w, log) })
		}
		heads, err := x.Heads(ctx, string(log.Session.ID))
		a.Command = "log heads"
		return a.Result(headsReport{log.Session, heads}, err, func(w io.Writer) {
			printHeads(w, heads)
		})
	})
}

// printHeads prints the log of heads. Digests are whole: they are compared with those elsewhere.
func printHeads(w io.Writer, heads []turnstone.LoggedHead) {
	terminal.List(w, false, "NUMBER\tENTRY\tTIME\tBRANCH\tTURN\tSTATEMENT", heads,
		func(h turnstone.LoggedHead) []any {
			turn, statement := cmp.Or(string(h.Turn), "removed"), "not signed"
			if h.Turn == "" || h.Statement != "" {
				statement = string(h.Statement)
			}
			return []any{h.Sequence, h.Digest, h.Time.Format(time.RFC3339),
				terminal.Name(h.Branch), turn, statement}
		})
}

func (c *logCmd) print(w io.Writer, log *turnstone.Graph) {
	now := time.Now()
	var g terminal.Graph
	for _, t := range log.Turns {
		rails, below := "", []string(nil)
		if c.Graph {
			rails, below = g.Turn(t.ID, t.Parents)
		}
		terminal.Println(w, rails+logLine(log, t, now))
		for _, line := range below {
			terminal.Println(w, line)
		}
	}
}

func logLine(log *turnstone.Graph, t turnstone.Turn, now time.Time) string {
	kind := ""
	if t.Kind == turnstone.TurnKindMerge {
		kind = "merge, "
	}
	return fmt.Sprintf("%d %s%s %s%s, %s: %s", t.Number, shortID(t.ID), names(log, t.ID), kind,
		outcome(t), terminal.Ago(t.Started, now), t.Title)
}

// shortID returns a prefix of a turn's ID that is unique in practice: the time in milliseconds, and
// some of the random part.
func shortID(id turnstone.TurnID) string { return string(id)[:min(len(id), 14)] }

// names returns the branches that end with the turn id, and its tags, in parentheses, with a space
// before them; empty if there are none.
func names(g *turnstone.Graph, id turnstone.TurnID) string {
	var list []string
	for _, b := range g.Branches {
		if b.Head == id {
			list = append(list, b.Name)
		}
	}
	for _, t := range g.Tags {
		if t.Turn == id {
			list = append(list, "tag: "+t.Name)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// outcome returns a turn's result, or a replacement for a turn without one.
func outcome(t turnstone.Turn) string {
	switch {
	case t.Status == turnstone.TurnRunning:
		return "running"
	case t.Interrupted():
		return "interrupted"
	}
	return string(t.Result)
}
