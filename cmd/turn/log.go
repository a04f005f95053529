package main

import (
	"bufio"
	"context"
	"fmt"
	"time"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/terminal"
)

type logCmd struct {
	Ref string `arg:"" help:"Session or turn: SESSION, SESSION@N, or an ID."`

	Graph bool `help:"Draw the tree of turns."`
	Max   int  `short:"n" help:"Print at most this many turns." placeholder:"N"`
	JSON  bool `name:"json" help:"Print the turns, branches and tags as JSON."`
}

// Help is shown below the flags' summary.
func (c *logCmd) Help() string {
	return `The name of a session lists all its turns, on all branches; a turn lists itself and
its ancestors. The newest turn comes first. Each line has the number of the turn,
the beginning of its ID, its branches and tags, its result, its age and its title.`
}

// Run lists the turns.
func (c *logCmd) Run(a *app) error {
	return a.withRefs([]*string{&c.Ref}, func(ctx context.Context, x *executor.Executor) error {
		log, err := x.Log(ctx, c.Ref, c.Max)
		if err != nil {
			return err
		}
		if c.JSON {
			return a.writeJSON(log)
		}
		out := bufio.NewWriter(a.stdout)
		now := time.Now()
		var g terminal.Graph
		for _, t := range log.Turns {
			rails, below := "", []string(nil)
			if c.Graph {
				rails, below = g.Turn(t.ID, t.Parents)
			}
			terminal.Println(out, rails+terminal.Printable(logLine(log, t, now)))
			for _, line := range below {
				terminal.Println(out, line)
			}
		}
		return out.Flush()
	})
}

func logLine(log *session.Graph, t session.Turn, now time.Time) string {
	kind := ""
	if t.Kind == string(executor.KindMerge) {
		kind = "merge, "
	}
	return fmt.Sprintf("%d %s%s %s%s, %s: %s", t.Number, shortID(t.ID), names(log, t.ID), kind, outcome(t), terminal.Ago(t.Started, now), t.Title)
}
