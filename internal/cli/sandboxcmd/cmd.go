// Package sandboxcmd has the commands that run in sandboxes without a turn: turn exec, and those
// below turn sandbox.
package sandboxcmd

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
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/sandboxes/access"
)

// Cmd has the commands below turn sandbox.
type Cmd struct {
	Create sandboxCreateCmd `cmd:"" help:"Create a sandbox and print its ID."`
	Ls     sandboxLsCmd     `cmd:"" help:"List sandboxes."`
	Commit sandboxCommitCmd `cmd:"" help:"Keep the work of a session's sandbox as a turn."`
	Exec   sandboxExecCmd   `cmd:"" help:"Run a command in a sandbox."`
	Attach sandboxAttachCmd `cmd:"" help:"Print the output of a detached command."`
	Ps     sandboxPsCmd     `cmd:"" help:"List the processes of a sandbox."`
	Cp     sandboxCpCmd     `cmd:"" help:"Copy files into a sandbox or out of it."`
	Expose sandboxExposeCmd `cmd:"" help:"Forward a local port to a sandbox."`
	Fork   sandboxForkCmd   `cmd:"" help:"Clone a running sandbox with its memory."`
	Stop   sandboxStopCmd   `cmd:"" help:"Stop sandboxes and keep their records."`
	Rm     sandboxRmCmd     `cmd:"" help:"Stop and remove sandboxes."`
	Serve  sandboxServeCmd  `cmd:"" help:"Serve sandboxes to DevTools Protocol clients."`
	Hold   sandboxHoldCmd   `cmd:"" hidden:"" help:"Hold a sandbox; create starts this."`
}

type sandboxLsCmd struct {
	JSON  bool `name:"json" help:"Print JSON." xor:"form"`
	Quiet bool `short:"q" help:"Print IDs only." xor:"form"`
}

// Help returns the text below the command's summary.
func (c *sandboxLsCmd) Help() string {
	return `States: creating; ready, no command has run yet; running; stopped, on request or
because its time was up; failed, with the reason. Stopped and failed sandboxes are
listed until turn sandbox rm removes them. A sandbox that a program of another version
than this one keeps shows that version.`
}

// Run lists the sandboxes.
func (c *sandboxLsCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		all, err := s.List(ctx)
		now := time.Now()
		report := SandboxesReport{append([]sandboxes.Info{}, all...)}
		return a.Result(report, err, func(w io.Writer) {
			head := "ID\tNAME\tSTATE\tIMAGE\tAGE\tLEFT\tREASON"
			terminal.List(w, c.Quiet, head, all, func(i sandboxes.Info) []any {
				name, image := cmp.Or(i.Name, i.Label, "-"), cmp.Or(i.Image, "-")
				age, left := terminal.Rough(now.Sub(i.Created)), timeLeft(i, now)
				return []any{i.ID, name, stateOf(i), image, age, left, i.Reason}
			})
		})
	})
}

// stateOf also shows that a sandbox is paused, and that a program of another version keeps it.
func stateOf(i sandboxes.Info) string {
	var more []string
	if i.Paused {
		more = append(more, "paused")
	}
	if i.NodeLost != nil {
		more = append(more, "node lost")
	}
	if i.Version != "" && i.Version != turnstone.Version && !i.State.Final() {
		more = append(more, "version "+i.Version)
	}
	if len(more) == 0 {
		return string(i.State)
	}
	return fmt.Sprintf("%s (%s)", i.State, strings.Join(more, ", "))
}

// timeLeft returns the time until a sandbox will be stopped.
func timeLeft(i sandboxes.Info, now time.Time) string {
	switch {
	case i.State != sandboxes.StateReady && i.State != sandboxes.StateRunning:
		return "-"
	case i.Expires == nil:
		return "no end"
	}
	return terminal.Rough(i.Expires.Sub(now))
}

type sandboxStopCmd struct {
	Sandboxes []string `arg:"" name:"sandbox" help:"IDs, ID prefixes or names."`
	Discard   bool     `help:"Keep no turn of a session's sandbox."`
	JSON      bool     `name:"json" help:"Print the stopped sandboxes as JSON."`
}

// Run stops the sandboxes, in order, up to the first failure.
func (c *sandboxStopCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		stop := s.Stop
		if c.Discard {
			t, err := turnsOf(s)
			if err != nil {
				return err
			}
			stop = t.Discard
		}
		stopped, err := eachSandbox(ctx, s, c.Sandboxes, stop)
		return a.Partial(StoppedReport{stopped}, err)
	})
}

type sandboxRmCmd struct {
	Sandboxes []string `arg:"" optional:"" name:"sandbox" help:"IDs, ID prefixes or names."`
	All       bool     `help:"Remove all sandboxes."`
	Discard   bool     `help:"Keep no turns of sessions' sandboxes."`
	JSON      bool     `name:"json" help:"Print the removed items as JSON."`
}

// Validate is called by kong.
func (c *sandboxRmCmd) Validate() error {
	if c.All == (len(c.Sandboxes) > 0) {
		return errors.New("name sandboxes, or use --all")
	}
	return nil
}

// Run removes the sandboxes.
func (c *sandboxRmCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, all cli.Sandboxes) error {
		var s cli.SandboxRecords = all
		if c.Discard {
			t, err := turnsOf(all)
			if err != nil {
				return err
			}
			s = discarding{all, t}
		}
		remove := c.removeAll
		if !c.All {
			remove = func(ctx context.Context, s cli.SandboxRecords) ([]string, error) {
				return eachSandbox(ctx, s, c.Sandboxes, s.Remove)
			}
		}
		removed, err := remove(ctx, s)
		return a.Partial(cli.RemovedReport{Removed: removed}, err)
	})
}

func (c *sandboxRmCmd) removeAll(ctx context.Context, s cli.SandboxRecords) ([]string, error) {
	all, err := s.List(ctx)
	if err != nil {
		return []string{}, err
	}
	removed := []string{}
	var errs []error
	for _, i := range all {
		switch err := s.Remove(ctx, i.ID); {
		case err == nil:
			removed = append(removed, string(i.ID))
		case !access.Gone(err, s.Get, i.ID): // otherwise another process has removed it
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}

// eachSandbox finds all sandboxes before it calls do with any of them, and returns the IDs of those for
// which do succeeded.
func eachSandbox(
	ctx context.Context, s cli.SandboxRecords, refs []string,
	do func(context.Context, turnstone.SandboxID) error,
) ([]string, error) {
	done := []string{}
	var ids []turnstone.SandboxID
	for _, ref := range refs {
		i, err := s.Find(ctx, ref)
		if err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity {
			return done, err
		}
		if err != nil { // damaged, and named by its full ID
			i.ID = turnstone.SandboxID(ref)
		}
		ids = append(ids, i.ID)
	}
	for _, id := range ids {
		if err := do(ctx, id); err != nil {
			return done, err
		}
		done = append(done, string(id))
	}
	return done, nil
}

// A SandboxesReport is the output of turn sandbox ls.
type SandboxesReport struct {
	Sandboxes []sandboxes.Info `json:"sandboxes"`
}

// A StoppedReport lists the stopped sandboxes, up to the first failure.
type StoppedReport struct {
	Stopped []string `json:"stopped"`
}
