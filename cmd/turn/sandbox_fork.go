package main

import (
	"context"
	"errors"
	"time"

	"turnstone.dev/turnstone/sandboxes"
)

type sandboxForkCmd struct {
	Sandbox     string        `arg:"" name:"sandbox" help:"ID, beginning of an ID, or name."`
	N           int           `short:"n" help:"Number of clones." placeholder:"N" default:"1"`
	Name        string        `help:"Name the clones PREFIX-1, PREFIX-2 and so on." placeholder:"PREFIX"`
	TTL         time.Duration `name:"ttl" help:"Stop each clone after this time; 0: never (default: 1h)." placeholder:"TIME" default:"1h"`
	WithSecrets bool          `name:"with-secrets" help:"Also when the sandbox holds secrets: each clone then has them too."`
	JSON        bool          `name:"json" help:"Print a line of JSON for each clone." xor:"form"`
	Quiet       bool          `short:"q" help:"Say nothing on standard error when all went well."`
}

// Help is shown below the flags' summary.
func (c *sandboxForkCmd) Help() string {
	return `The sandbox stands still for a moment and goes on. Each clone goes on from the
same moment, with the processes that ran, their memory and the files; it has
random numbers, a clock, a host name, a machine ID and a network stack of its
own. Connections end: commands that turn sandbox exec runs go on, TCP connections
to the outside end in the clones.

IDs are printed as clones come up. When some cannot be made, those that were stay.

Exit status: 0 all are up; 2 the command line is wrong; 3 the sandbox cannot be
forked, or not all clones came up.`
}

func (c *sandboxForkCmd) fork() sandboxes.Fork {
	return sandboxes.Fork{Count: c.N, Prefix: c.Name, TTL: c.TTL, Secrets: c.WithSecrets}
}

// Validate is called by kong.
func (c *sandboxForkCmd) Validate() error {
	if c.TTL < 0 {
		return errors.New("--ttl: that is no time to live")
	}
	return c.fork().Check()
}

// Run makes the clones.
func (c *sandboxForkCmd) Run(a *app) error {
	return a.withSandboxes(func(ctx context.Context, s *sandboxes.Store) error {
		i, err := s.Find(ctx, c.Sandbox)
		if err != nil {
			return err
		}
		began := time.Now()
		var failed error
		all, err := s.Fork(ctx, i.ID, c.fork(), func(clone sandboxes.Info) {
			if c.JSON {
				failed = errors.Join(failed, a.writeLine(a.stdout, clone))
				return
			}
			_, err := putln(a.stdout, clone.ID)
			failed = errors.Join(failed, err)
		})
		if !c.Quiet && len(all) > 0 {
			putf(a.stderr, "sandbox %s: %d of %d clones in %s\n", i.Title(), len(all), c.N, elapsed(time.Since(began)))
		}
		return errors.Join(err, failed)
	})
}
