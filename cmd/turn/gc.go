package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// An age is a duration that may be written in days, such as 7d.
type age time.Duration

// UnmarshalText is called by kong.
func (g *age) UnmarshalText(text []byte) error {
	s := string(text)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n < 100_000 {
			*g = age(time.Duration(n) * 24 * time.Hour)
			return nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not an age: write a number and a unit, such as 7d or 12h", s)
	}
	*g = age(d)
	return nil
}

type gcCmd struct {
	KeepAnonymous   age  `help:"Keep younger anonymous sessions (default: ${default})." default:"7d" placeholder:"AGE"`
	KeepUnreachable age  `help:"Keep younger unreachable turns (default: ${default})." default:"30d" placeholder:"AGE"`
	DryRun          bool `short:"n" help:"Report what would be deleted; delete nothing."`
	JSON            bool `name:"json" help:"Print what was deleted as JSON."`
}

// Help is shown below the flags' summary.
func (c *gcCmd) Help() string {
	return `Deletes unreachable data: anonymous sessions without a tag; turns of other sessions
that are not an ancestor of a branch, a tag or a running turn, and the data that only
they needed; outputs of killed turns that no receipt names; files of broken-out
machines in trash, of which those that cannot be removed are reported. All ancestors
of a turn that stays are kept. Turns may run at the same time.`
}

// Run deletes unreachable data.
func (c *gcCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x *executor.Executor) error {
		rep, err := x.GC(ctx, turnstone.GCRequest{KeepAnonymous: time.Duration(c.KeepAnonymous),
			KeepUnreachable: time.Duration(c.KeepUnreachable), DryRun: c.DryRun})
		if err != nil {
			return err
		}
		if c.JSON {
			return a.WriteJSON(rep)
		}
		return printGC(a, rep)
	})
}

func printGC(a *cli.App, rep *turnstone.GCReport) error {
	deleted := "deleted"
	if rep.DryRun {
		deleted = "would delete"
	}
	for _, s := range rep.Sessions {
		if _, err := terminal.Printf(a.Stdout, "%s session %s\n", deleted, s.Label()); err != nil {
			return err
		}
	}
	for _, s := range rep.Stuck {
		if _, err := terminal.Printf(a.Stdout, "cannot remove the files of a machine: %s\n", terminal.Printable(s)); err != nil {
			return err
		}
	}
	freed := fmt.Sprintf("; freed %s", turnstone.Bytes(max(rep.Freed, 0)).Human())
	if rep.DryRun { // the savings in packs are known only after they are rewritten
		freed = ""
	}
	_, err := terminal.Printf(a.Stdout, "%s %d sessions, %d turns, %d objects, %d folders and %d outputs of turns, %d images%s\n%d turns and %d objects stay\n",
		deleted, len(rep.Sessions), len(rep.Turns), rep.Store.Objects, rep.Folders, rep.Captures, rep.Images, freed, rep.Remain, rep.Objects)
	return err
}

type fsckCmd struct {
	JSON bool `name:"json" help:"Print the findings as JSON."`
}

// Help is shown below the flags' summary.
func (c *fsckCmd) Help() string {
	return `Reads every object of the context store, checks that all data that the turns of all
sessions need exists, and verifies its FS hashes and hard links. If context.db is
damaged or lost, packs and objects are checked anyway. Exit status: 0 no problem; 1
there are problems.`
}

// Run verifies the store.
func (c *fsckCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x *executor.Executor) error {
		rep, err := x.Fsck(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			err = a.WriteJSON(rep)
		} else {
			err = printFsck(a, rep)
		}
		if err == nil && !rep.OK() {
			err = cli.Exit(cli.ExitFailed, nil)
		}
		return err
	})
}

func printFsck(a *cli.App, rep *turnstone.FsckReport) error {
	var errs []error
	for _, p := range rep.Problems {
		repaired := ""
		if p.Repaired {
			repaired = " (repaired)"
		}
		_, err := terminal.Println(a.Stdout, terminal.Printable(p.Where+": "+p.Error)+repaired)
		errs = append(errs, err)
	}
	if rep.More > 0 {
		_, err := terminal.Printf(a.Stdout, "and %d more\n", rep.More)
		errs = append(errs, err)
	}
	_, err := terminal.Printf(a.Stdout, "%d problems in %d objects (%s) of %d packs, %d turns of %d sessions\n", len(rep.Problems)+rep.More,
		rep.Store.Objects, turnstone.Bytes(rep.Store.Bytes).Human(), rep.Store.Packs, rep.Turns, rep.Sessions)
	return errors.Join(append(errs, err)...)
}

type duCmd struct {
	JSON bool `name:"json" help:"Print the usage as JSON, in bytes."`
}

// Help is shown below the flags' summary.
func (c *duCmd) Help() string {
	return `For each session: all data that its turns need; the part that other sessions need
too; and the rest. These are sizes before compression, and without data in templates.
Below that: the disk usage.`
}

// Run prints disk usage.
func (c *duCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x *executor.Executor) error {
		u, err := x.Usage(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return a.WriteJSON(u)
		}
		human := func(n int64) string { return turnstone.Bytes(n).Human() }
		w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
		terminal.Printf(w, "SESSION\tTURNS\tSIZE\tSHARED\tITS OWN\n")
		for _, s := range u.Sessions {
			name := s.Name
			if name == "" {
				name = string(s.ID)
			}
			terminal.Printf(w, "%s\t%d\t%s\t%s\t%s\n", name, s.Turns, human(s.Logical), human(s.Shared), human(s.Unique))
		}
		terminal.Printf(w, "all\t\t%s\t%s\t%s\n", human(u.Logical), human(u.Shared), human(u.Logical-u.Shared))
		if err := w.Flush(); err != nil {
			return err
		}
		_, err = terminal.Printf(a.Stdout, "\nOn disk: %s in %d packs of %d objects (%s before compression), database %s,\nimages %s, turns %s, machines %s, homes %s, templates %s\n",
			human(u.Store.Stored), u.Store.Packs, u.Store.Objects, human(u.Store.Bytes), human(u.Database),
			human(u.Images), human(u.Turns), human(u.Machines), human(u.Homes), human(u.Templates))
		return err
	})
}
