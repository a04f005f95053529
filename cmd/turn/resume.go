package main

import (
	"context"
	"errors"
	"time"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/sandboxes"
)

type resumeCmd struct {
	Ref string `arg:"" help:"Turn whose machine was kept (snapshot: vm)."`

	Name  string         `help:"Name of the sandbox." placeholder:"NAME"`
	TTL   *time.Duration `name:"ttl" help:"Stop it after this time, as 10m or 8h; 0: never (default: 1h)." placeholder:"TIME"`
	Quiet bool           `short:"q" help:"Show no progress."`
	JSON  bool           `name:"json" help:"Print the sandbox as JSON."`
}

// Help is shown below the flags' summary.
func (c *resumeCmd) Help() string {
	return `The machine goes on with the processes that ran when the turn ended, as a sandbox
that stays: turn sandbox exec, attach, cp and rm work with it. It has a clock,
random numbers, names and a network stack of its own. Its ID is printed.`
}

// Run starts the machine.
func (c *resumeCmd) Run(a *app) error {
	if c.TTL != nil && *c.TTL < 0 {
		return &exitError{exitUsage, errors.New("--ttl: it is negative")}
	}
	ttl := sandboxes.DefaultTTL
	if c.TTL != nil {
		ttl = *c.TTL
	}
	return a.withRefs([]*string{&c.Ref}, func(ctx context.Context, x *executor.Executor) error {
		p := newProgress(a.stderr, styleOf(a.stderr, c.Quiet), 0)
		info, err := x.Resume(ctx, c.Ref, c.Name, ttl, p.Preparing)
		p.Close()
		if err != nil {
			return err
		}
		if !c.Quiet {
			putf(a.stderr, "sandbox %s: %s, %s\n", info.Title(), info.State, info.Isolation)
		}
		if c.JSON {
			return a.writeJSON(info)
		}
		_, err = putln(a.stdout, info.ID)
		return err
	})
}
