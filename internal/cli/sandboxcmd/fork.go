package sandboxcmd

import (
	"context"
	"errors"
	"time"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
)

type sandboxForkCmd struct {
	Sandbox     string        `arg:"" name:"sandbox" help:"ID, ID prefix or name."`
	N           int           `short:"n" help:"Create this number of clones (default: 1)." placeholder:"N" default:"1"`
	Name        string        `help:"Name the clones PREFIX-1, PREFIX-2 and so on." placeholder:"PREFIX"`
	TTL         time.Duration `name:"ttl" help:"Stop each clone after this time; 0: never (default: 1h)." placeholder:"TIME" default:"1h"`
	WithSecrets bool          `name:"with-secrets" help:"Clone secrets, too."`
	JSON        bool          `name:"json" help:"Print one line of JSON per clone." xor:"form"`
	Quiet       bool          `short:"q" help:"Print nothing on standard error on success."`
}

// Help returns the text below the command's summary.
func (c *sandboxForkCmd) Help() string {
	return `The sandbox is paused for a moment. Each clone continues from the same moment, with
the same processes, memory and files, and with its own random numbers, clock, host
name, machine ID and network stack. Commands of turn sandbox exec continue in the
original; TCP connections to the outside end in the clones.

Each ID is printed as soon as the clone is ready. If some clones fail, the others
remain.

Exit status: 0 all clones are ready; 2 the command line is invalid; 3 the sandbox
cannot be forked, or some clones failed.`
}

// Examples returns command lines for the help.
func (c *sandboxForkCmd) Examples() []string {
	return []string{
		"turn sandbox fork box -n 3 --name try",
	}
}

func (c *sandboxForkCmd) fork() sandboxes.Fork {
	return sandboxes.Fork{Count: c.N, Prefix: c.Name, TTL: c.TTL, Secrets: c.WithSecrets}
}

// Validate is called by kong.
func (c *sandboxForkCmd) Validate() error {
	if c.TTL < 0 {
		return errors.New("--ttl must not be negative")
	}
	return c.fork().Check()
}

// Run makes the clones.
func (c *sandboxForkCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		i, err := s.Find(ctx, c.Sandbox)
		if err != nil {
			return err
		}
		began := time.Now()
		var failed error
		all, err := s.Fork(ctx, i.ID, c.fork(), func(clone sandboxes.Info) {
			if c.JSON {
				failed = errors.Join(failed, a.WriteLine(a.Stdout, clone))
				return
			}
			_, err := terminal.Println(a.Stdout, clone.ID)
			failed = errors.Join(failed, err)
		})
		if !c.Quiet && len(all) > 0 {
			terminal.Printf(a.Stderr, "sandbox %s: %d of %d clones in %s\n",
				i.Title(), len(all), c.N, terminal.Elapsed(time.Since(began)))
		}
		return errors.Join(err, failed)
	})
}
