package main

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// A hostTemplate is an entry of turn template ls, as a host sends it: template.Entry.
type hostTemplate struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	Digest      turnstone.Digest `json:"digest"`
	BuiltIn     bool             `json:"built_in"`
	Ready       bool             `json:"ready"`
	Size        int64            `json:"size,omitempty"`
	Built       time.Time        `json:"built,omitzero"`
	Base        string           `json:"base,omitempty"`
	Problem     string           `json:"problem,omitempty"`
}

// image says whether the template is built.
func (t hostTemplate) image() string {
	switch {
	case t.Problem != "":
		return "unusable: " + terminal.Printable(t.Problem)
	case !t.Ready:
		return "not built"
	}
	return turnstone.Bytes(t.Size).Human()
}

// listOnHost lists the templates of the host that the user selected; found is false without one.
func (c *templateLsCmd) listOnHost(a *cli.App) (found bool, err error) {
	s, err := a.Server(context.Background())
	if err != nil || s == nil {
		return err != nil, cli.Fail(err)
	}
	_ = s.Close()
	return true, a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		host, ok := x.(interface {
			Templates(ctx context.Context) (json.RawMessage, error)
		})
		if !ok {
			return a.OnlyHere("template.ls")
		}
		var report struct {
			Templates []hostTemplate `json:"templates"`
		}
		text, err := host.Templates(ctx)
		if err == nil {
			err = json.Unmarshal(text, &report.Templates)
		}
		return a.Result(report, err, func(w io.Writer) {
			terminal.List(w, c.Names, "NAME\tDIGEST\tIMAGE\tDESCRIPTION", report.Templates,
				func(t hostTemplate) []any {
					return []any{t.Name, t.Digest.Short(), t.image(), t.Description}
				})
		})
	})
}
