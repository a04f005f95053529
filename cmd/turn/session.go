package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/hostcmd"
	"turnstone.dev/turnstone/internal/terminal"
)

type sessionCmd struct {
	Ls     sessionLsCmd     `cmd:"" help:"List sessions."`
	Show   sessionShowCmd   `cmd:"" help:"Show a session's branches and tags."`
	Rm     sessionRmCmd     `cmd:"" help:"Remove sessions or a branch."`
	Seal   sessionSealCmd   `cmd:"" help:"Seal sessions with keys of their own."`
	Rename sessionRenameCmd `cmd:"" help:"Rename a session."`
	Export sessionExportCmd `cmd:"" help:"Export a session to a file."`
	Import sessionImportCmd `cmd:"" help:"Import an exported session."`
	Tag    sessionTagCmd    `cmd:"" help:"Add a tag to a turn."`
	Untag  sessionUntagCmd  `cmd:"" help:"Remove a tag."`
	Allow  hostcmd.AllowCmd `cmd:"" help:"Admit another client to a session of a server."`
}

type sessionLsCmd struct {
	All   bool `short:"a" help:"List anonymous sessions, too."`
	JSON  bool `name:"json" help:"Print all sessions as JSON." xor:"form"`
	Names bool `help:"Print names only." xor:"form"`
}

// Run lists the sessions.
func (c *sessionLsCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		all, err := x.Sessions(ctx)
		shown, now := slices.Clone(all), time.Now()
		if !c.All {
			anonymous := func(s turnstone.SessionInfo) bool { return s.Name == "" }
			shown = slices.DeleteFunc(shown, anonymous)
		}
		err = a.Result(sessionsReport{all}, err, func(w io.Writer) {
			head := "SESSION\tTURNS\tBRANCHES\tUSED\tTITLE OF THE LAST TURN"
			terminal.List(w, c.Names, head, shown, func(s turnstone.SessionInfo) []any {
				branches := strings.Join(s.Branches, " ")
				return []any{s.Label(), s.Turns, branches, terminal.Ago(s.Used, now), s.Title}
			})
		})
		if n := len(all) - len(shown); err == nil && n > 0 && !c.Names && !c.JSON {
			terminal.Printf(a.Stderr, "turn: %s not shown; -a shows them\n",
				terminal.Plural(n, "anonymous session is", "anonymous sessions are"))
		}
		if err == nil {
			a.SayUnseen(ctx, x)
		}
		return err
	})
}

type sessionShowCmd struct {
	Session string `arg:"" help:"Name or ID."`
	JSON    bool   `name:"json" help:"Print the session and its turns as JSON."`
}

// Run shows the session.
func (c *sessionShowCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Session}, func(ctx context.Context, x cli.Executor) error {
		g, err := x.Session(ctx, c.Session)
		return a.Result(g, err, func(w io.Writer) {
			rows := [][]any{
				{"session", g.Session.Label()}, {"id", g.Session.ID},
				{"created", g.Session.Created.Format(time.RFC3339)}, {"turns", len(g.Turns)},
			}
			for _, b := range g.Branches {
				rows = append(rows, []any{"branch", b.Name, at(g, b.Head)})
			}
			for _, t := range g.Tags {
				rows = append(rows, []any{"tag", t.Name, at(g, t.Turn)})
			}
			terminal.Table(w, "", rows, func(row []any) []any { return row })
		})
	})
}

// at names a turn of g.
func at(g *turnstone.Graph, id turnstone.TurnID) string {
	for _, t := range g.Turns {
		if t.ID == id {
			return fmt.Sprintf("turn %d (%s)", t.Number, t.ID)
		}
	}
	return "no turn yet"
}

type sessionRmCmd struct {
	Sessions []string `arg:"" name:"session" help:"Names or IDs; one with --branch."`
	Branch   string   `short:"b" help:"Remove this branch only; turn gc deletes its turns." placeholder:"NAME"`
	Shred    bool     `help:"Destroy the keys, so that nothing can be read again."`
	JSON     bool     `name:"json" help:"Print the removed items as JSON."`
}

// Validate is called by kong.
func (c *sessionRmCmd) Validate() error {
	if c.Branch != "" && c.Shred {
		return errors.New("--shred applies to whole sessions")
	}
	if c.Branch != "" && len(c.Sessions) > 1 {
		return errors.New("--branch applies to one session only")
	}
	return nil
}

// Help returns the text below the command's summary.
func (c *sessionRmCmd) Help() string {
	return `turn gc deletes the data of the turns. Long outputs are deleted after 7 days, or by
turn gc --keep-anonymous 0s. A session with a running turn is not removed.

--shred is for sealed sessions: their data is gone at once, also in backups
without the keys. Copies of the keys have to be destroyed separately.`
}

// Examples returns command lines for the help.
func (c *sessionRmCmd) Examples() []string {
	return []string{
		"turn session rm research",
		"turn session rm research --branch explore",
		"turn session rm research --shred",
	}
}

// Run removes the sessions, in order, up to the first failure.
func (c *sessionRmCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		for i := range c.Sessions {
			if err := a.Expand(ctx, x, &c.Sessions[i]); err != nil {
				return err
			}
		}
		rep := cli.RemovedReport{Removed: []string{}}
		err := c.remove(ctx, x, &rep)
		return a.Partial(rep, err)
	})
}

// remove adds the removed sessions to rep.
func (c *sessionRmCmd) remove(
	ctx context.Context, x cli.Executor, rep *cli.RemovedReport,
) error {
	if c.Branch != "" {
		err := x.RemoveBranch(ctx, c.Sessions[0], c.Branch)
		if err == nil {
			rep.Removed = append(rep.Removed, c.Sessions[0]+"@"+c.Branch)
		}
		return err
	}
	for _, s := range c.Sessions {
		if _, err := x.Session(ctx, s); err != nil {
			return err
		}
	}
	remove := x.RemoveSession
	if c.Shred {
		remove = x.ShredSession
	}
	for _, s := range c.Sessions {
		if _, err := remove(ctx, s); err != nil {
			return err
		}
		rep.Removed = append(rep.Removed, s)
	}
	return nil
}

type sessionSealCmd struct {
	Sessions []string `arg:"" optional:"" name:"session" help:"Names or IDs."`
	All      bool     `help:"Seal all sessions that are not sealed."`
	JSON     bool     `name:"json" help:"Print the sealed sessions as JSON."`
}

// Validate is called by kong.
func (c *sessionSealCmd) Validate() error {
	if c.All == (len(c.Sessions) > 0) {
		return errors.New("name sessions, or give --all")
	}
	return nil
}

// Help returns the text below the command's summary.
func (c *sessionSealCmd) Help() string {
	return `Encrypts the data of each session with a key of its own, and removes the data
that was not encrypted. If the command is interrupted, run it again.
A session with a running turn is not sealed. docs/keys.md tells how keys are kept.`
}

// Examples returns command lines for the help.
func (c *sessionSealCmd) Examples() []string {
	return []string{"turn session seal research", "turn session seal --all"}
}

// Run seals the sessions, in order, up to the first failure, and then removes their former data.
func (c *sessionSealCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		for i := range c.Sessions {
			if err := a.Expand(ctx, x, &c.Sessions[i]); err != nil {
				return err
			}
		}
		if c.All {
			all, err := x.Sessions(ctx)
			if err != nil {
				return err
			}
			for _, s := range all {
				c.Sessions = append(c.Sessions, string(s.ID))
			}
		}
		rep, err := x.SealSessions(ctx, c.Sessions)
		if rep == nil {
			return err
		}
		return a.Partial(rep, err)
	})
}

type sessionRenameCmd struct {
	Session string `arg:"" help:"Name or ID."`
	Name    string `arg:"" help:"New name."`
	JSON    bool   `name:"json" help:"Print the session as JSON."`
}

// Run renames the session.
func (c *sessionRenameCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		given := c.Session
		if err := a.Expand(ctx, x, &c.Session); err != nil {
			return err
		}
		s, err := x.Rename(ctx, c.Session, c.Name)
		// otherwise it is already the current session, or TURN_SESSION names it
		if err == nil && given == c.Session {
			x.NoteUse(ctx, string(s.ID)) // its name has changed
		}
		return a.Result(s, err, nil)
	})
}

type sessionTagCmd struct {
	Ref  string `arg:"" help:"Turn: SESSION@N, SESSION@BRANCH or an ID."`
	Name string `arg:"" help:"Tag."`
	JSON bool   `name:"json" help:"Print the tag as JSON."`
}

// Examples returns command lines for the help.
func (c *sessionTagCmd) Examples() []string {
	return []string{
		"turn session tag research@2 good",
	}
}

// Run tags the turn.
func (c *sessionTagCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Ref}, func(ctx context.Context, x cli.Executor) error {
		tag, err := x.Tag(ctx, c.Ref, c.Name)
		return a.Result(tag, err, nil)
	})
}

type sessionUntagCmd struct {
	Session string `arg:"" help:"Name or ID."`
	Name    string `arg:"" help:"Tag."`
	JSON    bool   `name:"json" help:"Print the removed items as JSON."`
}

// Run removes the tag.
func (c *sessionUntagCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Session}, func(ctx context.Context, x cli.Executor) error {
		err := x.Untag(ctx, c.Session, c.Name)
		return a.Result(cli.RemovedReport{Removed: []string{c.Name}}, err, nil)
	})
}

type sessionExportCmd struct {
	Session string `arg:"" help:"Name or ID."`
	Output  string `short:"o" help:"Output file; - is stdout (default: SESSION.tzst)." placeholder:"FILE"`
	Full    bool   `help:"Include the template's files that turns need."`
	JSON    bool   `name:"json" help:"Print a report as JSON."`
}

// Examples returns command lines for the help.
func (c *sessionExportCmd) Examples() []string {
	return []string{
		"turn session export research -o research.tzst",
	}
}

// Run exports the session.
func (c *sessionExportCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Session}, func(ctx context.Context, x cli.Executor) error {
		if c.Output == "-" {
			req := executor.ExportRequest{Session: c.Session, Full: c.Full}
			_, err := x.Export(ctx, req, a.Stdout)
			return err
		}
		g, err := x.Session(ctx, c.Session)
		if err != nil {
			return err
		}
		path := c.Output
		if path == "" {
			path = g.Session.Label() + ".tzst"
		}
		req := executor.ExportRequest{Session: string(g.Session.ID), Full: c.Full}
		rep, err := exportTo(ctx, x, req, path)
		return a.Result(rep, err, func(w io.Writer) {
			terminal.Printf(w, "%s: %d turns, %d objects, %s before compression\n",
				path, rep.Turns, rep.Objects, turnstone.Bytes(rep.Bytes).Human())
		})
	})
}

// exportTo writes the file as a whole, or not at all.
func exportTo(
	ctx context.Context, x cli.Executor, req executor.ExportRequest, path string,
) (*turnstone.ExportReport, error) {
	unwritable := func(err error) error {
		return turnstone.Errorf("export", turnstone.KindInvalid, path,
			"cannot be written: %w", err).WithHint("name another file with -o")
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return nil, unwritable(err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	rep, err := x.Export(ctx, req, tmp)
	if err == nil {
		err = errors.Join(tmp.Chmod(0o600), tmp.Sync()) // outputs and files belong to its owner
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return nil, unwritable(err)
	}
	return rep, cli.Durable(path)
}

type sessionImportCmd struct {
	File  string `arg:"" help:"Exported file; - reads standard input."`
	As    string `help:"Import the session under this name." placeholder:"NAME"`
	Build string `help:"Build templates: known, all or none (default: known)." enum:"known,all,none" default:"known" placeholder:"WHICH"`
	JSON  bool   `name:"json" help:"Print a report as JSON."`
	Quiet bool   `short:"q" help:"Print no progress."`

	AcceptHistory bool `help:"Import a log of heads that contradicts the known one."`
}

// Help returns the text below the command's summary.
func (c *sessionImportCmd) Help() string {
	return `The digest of every object and all references are verified. A damaged or invalid
file creates no session. A second import of the same file changes nothing.

Statements, their signatures and the log of heads are verified too, without trust in
any key: turn verify NAME --all says who signed. If the session is or was here, its
log of heads must begin with the log that is known here.

The file may refer to files of templates. Missing templates are built if they are
built in or known here. --build all also builds the specs in the file, which run
commands of the file's author, and pulls images of registries. The rest is imported
even if a template stays missing; the missing files are reported.`
}

// Examples returns command lines for the help.
func (c *sessionImportCmd) Examples() []string {
	return []string{
		"turn session import research.tzst --as copy",
	}
}

// Run imports the session.
func (c *sessionImportCmd) Run(a *cli.App) error {
	in := a.Stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return unreadable(c.File, err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		p := a.Progress(c.Quiet, 0)
		rep, err := x.Import(ctx, executor.ImportRequest{As: c.As,
			Build: turnstone.ImportBuild(c.Build), Progress: p.Preparing,
			AcceptHistory: c.AcceptHistory}, in)
		p.Close()
		if err != nil && c.File != "-" {
			err = fmt.Errorf("%s: %w", c.File, err)
		}
		if err == nil && !c.JSON && rep.Fresh && rep.Missing > 0 {
			warnMissing(a, rep)
		}
		return a.Result(rep, err, func(w io.Writer) { printImport(w, rep) })
	})
}

func printImport(w io.Writer, rep *turnstone.ImportReport) {
	if !rep.Fresh {
		terminal.Printf(w, "%s exists already; verify it with turn verify %s --all\n",
			rep.Session.Label(), rep.Session.Label())
		return
	}
	terminal.Printf(w, "%s: %d turns, %d objects\n", rep.Session.Label(), rep.Turns, rep.Objects)
}

// warnMissing reports the templates whose files are missing.
func warnMissing(a *cli.App, rep *turnstone.ImportReport) {
	size := turnstone.Bytes(rep.MissingBytes).Human()
	terminal.Printf(a.Stderr,
		"turn: %d files (%s) cannot be read until their templates are built:\n", rep.Missing, size)
	for _, t := range rep.Templates {
		terminal.Printf(a.Stderr, "turn: template %s: %s\nhint: %s\n", t.Name, t.Why, t.Hint)
	}
}
