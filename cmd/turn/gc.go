package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
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
	JSON            bool `name:"json" help:"Print the removed items as JSON."`
}

// Help returns the text below the command's summary.
func (c *gcCmd) Help() string {
	return `Deletes:

  - anonymous sessions without a tag
  - turns of other sessions from which no branch, tag or running turn descends
  - the data that only these turns needed
  - outputs of killed turns that no receipt names
  - the trash: files of machines that could not be removed at once

Files of the trash that cannot be removed are reported. Turns may run at the same
time.`
}

// Examples returns command lines for the help.
func (c *gcCmd) Examples() []string {
	return []string{
		"turn gc --dry-run",
		"turn gc --keep-anonymous 0s --keep-unreachable 7d",
	}
}

// Run deletes unreachable data.
func (c *gcCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		rep, err := x.GC(ctx, turnstone.GCRequest{KeepAnonymous: time.Duration(c.KeepAnonymous),
			KeepUnreachable: time.Duration(c.KeepUnreachable), DryRun: c.DryRun})
		return a.Result(rep, err, func(w io.Writer) { printGC(w, rep) })
	})
}

func printGC(w io.Writer, rep *turnstone.GCReport) {
	deleted := "deleted"
	if rep.DryRun {
		deleted = "would delete"
	}
	for _, s := range rep.Sessions {
		terminal.Printf(w, "%s session %s\n", deleted, s.Label())
	}
	for _, d := range rep.Domains {
		terminal.Printf(w, "%s the key of domain %s, which no session uses\n", deleted, d)
	}
	for _, s := range rep.Stuck {
		terminal.Printf(w, "cannot remove the files of a machine: %s\n", s)
	}
	freed := "; freed " + turnstone.Bytes(max(rep.Freed, 0)).Human()
	if rep.DryRun { // the savings in packs are known only after they are rewritten
		freed = ""
	}
	terminal.Printf(w, "%s %d sessions, %d turns, %d objects, ",
		deleted, len(rep.Sessions), len(rep.Turns), rep.Store.Objects)
	terminal.Printf(w, "%d folders and %d outputs of turns, %d images%s\n",
		rep.Folders, rep.Captures, rep.Images, freed)
	terminal.Printf(w, "%d turns and %d objects stay\n", rep.Remain, rep.Objects)
}

type fsckCmd struct {
	JSON bool `name:"json" help:"Print the findings as JSON."`
}

// Help returns the text below the command's summary.
func (c *fsckCmd) Help() string {
	return `Reads every object of the store, checks that the data of all turns exists, and
verifies FS hashes and hard links. If context.db is damaged or lost, packs and objects
are checked anyway.

Exit status: 0 no problem; 1 there are problems.`
}

// Run verifies the store.
func (c *fsckCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		rep, err := x.Fsck(ctx)
		err = a.Result(rep, err, func(w io.Writer) { printFsck(w, rep) })
		if err == nil && !rep.OK() {
			err = cli.Exit(cli.ExitFailed, nil)
		}
		return err
	})
}

func printFsck(w io.Writer, rep *turnstone.FsckReport) {
	for _, p := range rep.Problems {
		repaired := ""
		if p.Repaired {
			repaired = " (repaired)"
		}
		terminal.Printf(w, "%s: %s%s\n", p.Where, p.Error, repaired)
	}
	if rep.More > 0 {
		terminal.Printf(w, "and %d more\n", rep.More)
	}
	for _, d := range rep.Unused {
		terminal.Printf(w, "no session uses domain %s: turn gc destroys its key\n", d)
	}
	terminal.Printf(w, "%d problems in %d objects (%s) of %d packs, %d turns of %d sessions\n",
		len(rep.Problems)+rep.More, rep.Store.Objects, turnstone.Bytes(rep.Store.Bytes).Human(),
		rep.Store.Packs, rep.Turns, rep.Sessions)
}

type duCmd struct {
	JSON bool `name:"json" help:"Print the usage as JSON, in bytes."`
}

// Help returns the text below the command's summary.
func (c *duCmd) Help() string {
	return `SIZE is the data that the turns of a session need, SHARED the part of it that other
sessions need too, ITS OWN the rest. Sizes are before compression, and without the
data of templates. The last lines show the disk usage.`
}

// Run prints disk usage.
func (c *duCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		u, err := x.Usage(ctx)
		return a.Result(u, err, func(w io.Writer) { printUsage(w, u) })
	})
}

func printUsage(w io.Writer, u *turnstone.Usage) {
	human := func(n int64) string { return turnstone.Bytes(n).Human() }
	var rows [][]any
	for _, s := range u.Sessions {
		rows = append(rows, []any{cmp.Or(s.Name, string(s.ID)), s.Turns,
			human(s.Logical), human(s.Shared), human(s.Unique)})
	}
	unique := u.Logical - u.Shared
	rows = append(rows, []any{"all", "", human(u.Logical), human(u.Shared), human(unique)})
	head := "SESSION\tTURNS\tSIZE\tSHARED\tITS OWN"
	terminal.Table(w, head, rows, func(row []any) []any { return row })
	terminal.Printf(w, "\nOn disk: %s in %d packs of %d objects (%s before compression), ",
		human(u.Store.Stored), u.Store.Packs, u.Store.Objects, human(u.Store.Bytes))
	terminal.Printf(w, "database %s,\nimages %s, turns %s, machines %s, homes %s, templates %s\n",
		human(u.Database), human(u.Images), human(u.Turns), human(u.Machines), human(u.Homes),
		human(u.Templates))
}
