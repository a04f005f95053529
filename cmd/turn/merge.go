package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/store/merge"
	"turnstone.dev/turnstone/internal/terminal"
)

type mergeCmd struct {
	From string `arg:"" help:"Turn: a branch, SESSION@BRANCH, SESSION@N or an ID."`

	Into    string       `help:"Merge into this branch (default: main)." default:"main" placeholder:"BRANCH"`
	Session string       `help:"Find the branch FROM in this session." placeholder:"NAME"`
	Ours    bool         `help:"Resolve other conflicts with the branch's version." xor:"side"`
	Theirs  bool         `help:"Resolve other conflicts with FROM's version." xor:"side"`
	Resolve []resolution `help:"Resolve conflicts at or below PATH (repeatable)." placeholder:"PATH=SIDE" sep:"none"`
	Markers bool         `help:"Write conflict markers into text files."`
	NoFF    bool         `name:"no-ff" help:"Create a turn even if a fast-forward is possible."`
	DryRun  bool         `help:"Report changes and conflicts; merge nothing."`
	Message string       `short:"m" help:"Set the title of the turn." placeholder:"TEXT"`
	Receipt bool         `help:"Print the receipt." xor:"print"`
	JSON    bool         `name:"json" help:"Print the outcome as JSON." xor:"print"`
}

// Help returns the text below the command's summary.
func (c *mergeCmd) Help() string {
	return `The merge adds FROM's changes since the common ancestor to the branch: files (text
files line by line), environment, working directory. It creates a turn with two
parents. A branch without changes of its own is fast-forwarded. An unresolved
conflict stores nothing; the conflicts are listed with the digests, or the values,
of base, ours (the branch) and theirs (FROM).

PATH is the path of a file, "env:NAME", or "cwd". docs/merge.md has all rules.

Exit status: 0 merged, or nothing to merge; 1 there are conflicts; 2 there is no
such turn, or the command line is invalid; 3 the merge failed.`
}

// Examples returns command lines for the help.
func (c *mergeCmd) Examples() []string {
	return []string{
		"turn merge research@explore",
		"turn merge research@explore --into main --dry-run",
		"turn merge research@explore --resolve /workspace/out.csv=ours",
	}
}

// A resolution is PATH=ours or PATH=theirs.
type resolution struct {
	path string
	side turnstone.Side
}

// UnmarshalText is called by kong.
func (r *resolution) UnmarshalText(text []byte) error {
	i := strings.LastIndexByte(string(text), '=')
	if i < 1 {
		return fmt.Errorf("%q: write PATH=ours or PATH=theirs", text)
	}
	r.path = string(text[:i])
	isFile, isEnv := strings.HasPrefix(r.path, "/"), strings.HasPrefix(r.path, merge.EnvPrefix)
	if r.path != merge.CwdPath && !isFile && !isEnv {
		return fmt.Errorf("%q: a path begins with / or env:, or is cwd", r.path)
	}
	if len(r.path) > 1 {
		r.path = strings.TrimSuffix(r.path, "/")
	}
	var err error
	r.side, err = turnstone.ParseSide(string(text[i+1:]))
	return err
}

func (c *mergeCmd) request() executor.MergeRequest {
	req := executor.MergeRequest{From: c.From, Into: c.Into, Session: c.Session,
		Markers: c.Markers, NoFF: c.NoFF, DryRun: c.DryRun, Message: c.Message,
		Paths: map[string]turnstone.Side{}}
	switch {
	case c.Ours:
		req.Default = turnstone.SideOurs
	case c.Theirs:
		req.Default = turnstone.SideTheirs
	}
	for _, r := range c.Resolve {
		req.Paths[r.path] = r.side
	}
	return req
}

// merge merges. FROM is in the current session only if no session is named.
func (c *mergeCmd) merge(
	ctx context.Context, a *cli.App, x cli.Executor,
) (*turnstone.MergeReport, error) {
	given := cmp.Or(c.Session, c.From)
	named := []*string{&c.Session}
	if c.Session == "" || strings.HasPrefix(c.From, "-") || strings.HasPrefix(c.From, "@") {
		named = append(named, &c.From)
	}
	if err := a.Expand(ctx, x, named...); err != nil {
		return nil, err
	}
	rep, err := x.Merge(ctx, c.request())
	if err == nil && (c.Session != "" || strings.Contains(given, "@")) { // otherwise it is a branch
		x.NoteUse(ctx, given)
	}
	return rep, err
}

// Run merges.
func (c *mergeCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		rep, err := c.merge(ctx, a, x)
		err = a.Result(rep, err, func(w io.Writer) {
			text := ""
			if c.Receipt && rep.Receipt != "" {
				text = terminal.Text(a.Stdout, rep.Receipt)
			} else {
				text = mergeText(rep, c.Markers)
			}
			_, _ = io.WriteString(w, text) // w keeps its error
		})
		if err == nil && rep.Outcome == turnstone.MergeConflicts {
			err = cli.Exit(cli.ExitFailed, nil)
		}
		return err
	})
}

// mergeText describes the result of a merge for users; markers means that they were requested.
func mergeText(r *turnstone.MergeReport, markers bool) string {
	var b strings.Builder
	would := func(did, would string) string {
		if r.DryRun {
			return would
		}
		return did
	}
	into := r.Session + "@" + r.Into
	switch r.Outcome {
	case turnstone.MergeUpToDate:
		terminal.Printf(&b, "%s already contains turn %d\n", into, r.Theirs.Number)
	case turnstone.MergeFastForward:
		terminal.Printf(&b, "%s %s to turn %d: a fast-forward\n", into,
			would("moved", "would move"), r.Theirs.Number)
	case turnstone.MergeConflicts:
		conflictsText(&b, r.Conflicts)
		ways := "--resolve PATH=ours or PATH=theirs, --ours, --theirs, or --markers"
		if markers {
			ways = "--resolve PATH=ours or PATH=theirs, --ours, or --theirs; " +
				"these conflicts cannot have markers"
		}
		terminal.Printf(&b, "%s; nothing was stored; resolve with "+ways+"\n",
			terminal.Plural(len(r.Conflicts), "conflict", "conflicts"))
	case turnstone.MergeDone:
		if r.DryRun {
			terminal.Printf(&b, "turn %d would be merged into %s: %s\n",
				r.Theirs.Number, into, mergeChanges(r))
		} else {
			terminal.Printf(&b, "turn %d: merged turn %d into %s@%s: %s\n",
				r.Number, r.Theirs.Number, r.Session, r.Branch, mergeChanges(r))
		}
		for _, p := range r.Merged {
			terminal.Printf(&b, "  %s: lines merged\n", terminal.Name(p))
		}
		for _, n := range r.Renames {
			terminal.Printf(&b, "  %s: followed to %s\n", terminal.Name(n.From),
				terminal.Name(n.To))
		}
		for _, c := range r.Resolved {
			terminal.Printf(&b, "  %s: %s, %s\n", terminal.Name(c.Path), c.Kind, c.Resolution)
		}
		if r.CwdGone != "" {
			terminal.Printf(&b, "  the working directory %s no longer exists: %s\n",
				terminal.Name(r.CwdGone), terminal.Name(r.Cwd))
		}
		if r.Diverged {
			terminal.Printf(&b, "another turn on %s ended first: ", r.Into)
			terminal.Printf(&b, "this turn is the head of the new branch %s\n", r.Branch)
		}
	}
	if r.RenamesSkipped {
		terminal.Println(&b,
			"too many files changed: the search for renamed and changed files was skipped")
	}
	return b.String()
}

func mergeChanges(r *turnstone.MergeReport) string {
	if s := r.Layer.String(); s != "" {
		return s
	}
	return "no file changed"
}

// conflictsText lists conflicts: path, kind, and the three versions.
func conflictsText(b *strings.Builder, all []turnstone.Conflict) {
	for _, c := range all {
		terminal.Printf(b, "%s: %s", terminal.Name(c.Path), c.Kind)
		if c.Detail != "" {
			terminal.Printf(b, " (%s)", terminal.Name(c.Detail))
		}
		for _, v := range []struct {
			who string
			*turnstone.ConflictVersion
		}{{"base", c.Base}, {"ours", c.Ours}, {"theirs", c.Theirs}} {
			what := versionText(v.ConflictVersion)
			if v.ConflictVersion != nil && v.Path != "" {
				what += " at " + terminal.Name(v.Path)
			}
			terminal.Printf(b, "  %s %s", v.who, what)
		}
		b.WriteByte('\n')
	}
}

// versionText returns a version in short: a value or a symlink's target, otherwise a digest.
func versionText(v *turnstone.ConflictVersion) string {
	switch {
	case v == nil:
		return "-"
	case v.Type != "" && v.Type != "symlink":
		return v.Digest.Short()
	}
	if value := []rune(v.Target); len(value) > maxValue {
		return strconv.Quote(string(value[:maxValue])) + "…"
	}
	return strconv.Quote(v.Target)
}

// maxValue bounds the part of a value that a conflict shows, in runes.
const maxValue = 40
