package proofcmd

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
)

// CompareCmd is turn compare.
type CompareCmd struct {
	Refs []string `arg:"" name:"turn" help:"Two or more turns of a session."`
	JSON bool     `name:"json" help:"Print JSON."`
}

// Help is shown below the flags' summary.
func (c *CompareCmd) Help() string {
	return `The output is a markdown table with a column for each turn, such as branches that start
from one turn: result, duration, changed files, and for each step its status and the
last line of its output. turn diff --results compares two turns in detail.`
}

// Examples returns command lines for the help.
func (c *CompareCmd) Examples() []string {
	return []string{
		"turn compare research@fast research@small research@plain",
	}
}

// Validate is called by kong.
func (c *CompareCmd) Validate() error {
	if len(c.Refs) < 2 || len(c.Refs) > maxCompared {
		return fmt.Errorf("name 2 to %d turns", maxCompared)
	}
	return nil
}

// maxCompared bounds the columns of a table.
const maxCompared = 50

// Run compares.
func (c *CompareCmd) Run(a *cli.App) error {
	refs := make([]*string, len(c.Refs))
	for i := range c.Refs {
		refs[i] = &c.Refs[i]
	}
	return a.WithRefs(refs[:1], func(ctx context.Context, x cli.Executor) error {
		for _, ref := range refs[1:] { // the others are in the first one's session
			if strings.HasPrefix(*ref, "-") || strings.HasPrefix(*ref, "@") {
				if err := a.Expand(ctx, x, ref); err != nil {
					return err
				}
			}
		}
		rep, err := x.Compare(ctx, c.Refs)
		return a.Result(rep, err, func(w io.Writer) { printCompare(w, rep) })
	})
}

// maxRows bounds the files of a table; --json has more.
const maxRows = 50

// printCompare prints the table.
func printCompare(w io.Writer, rep *turnstone.CompareReport) {
	row := func(head string, cell func(t *turnstone.ComparedTurn, i int) string) {
		line := "| " + head + " |"
		for i := range rep.Turns {
			line += " " + cell(&rep.Turns[i], i) + " |"
		}
		terminal.Println(w, line)
	}
	row("", func(t *turnstone.ComparedTurn, _ int) string {
		return fmt.Sprintf("%s@%d (%s)", plain(t.Session), t.Number, plain(t.Branch))
	})
	terminal.Println(w, "|"+strings.Repeat("---|", len(rep.Turns)+1))
	row("title", func(t *turnstone.ComparedTurn, _ int) string { return plain(t.Title) })
	row("result", func(t *turnstone.ComparedTurn, _ int) string {
		return strings.TrimSpace(string(t.Result) + " " + plain(t.Error))
	})
	if determinismDiffers(rep.Turns) {
		row("deterministic", func(t *turnstone.ComparedTurn, _ int) string {
			return deterministic(t.Determinism)
		})
	}
	row("duration", func(t *turnstone.ComparedTurn, _ int) string {
		return terminal.Elapsed(time.Duration(t.Millis) * time.Millisecond)
	})
	row("files", func(t *turnstone.ComparedTurn, _ int) string {
		return cmp.Or(t.Layer.String(), "none changed")
	})
	for _, name := range stepNames(rep) {
		row("step "+plain(name), func(t *turnstone.ComparedTurn, _ int) string {
			for _, s := range t.Steps {
				if s.Name == name {
					return stepCell(s)
				}
			}
			return "-"
		})
	}
	shown := rep.Files[:min(len(rep.Files), maxRows)]
	for _, f := range shown {
		row(code(f.Path), func(_ *turnstone.ComparedTurn, i int) string {
			return strings.TrimSpace(f.Changes[i] + " " + f.Digests[i].Short())
		})
	}
	if more := len(rep.Files) - len(shown) + rep.More; more > 0 {
		terminal.Printf(w, "\nand %d more files; --json names them, up to a bound\n", more)
	}
}

// determinismDiffers reports whether tier, seed or clock of the turns differ.
func determinismDiffers(turns []turnstone.ComparedTurn) bool {
	for i := range turns {
		if deterministic(turns[i].Determinism) != deterministic(turns[0].Determinism) {
			return true
		}
	}
	return false
}

// deterministic describes a turn's determinism.
func deterministic(d *turnstone.Determinism) string {
	if d == nil {
		return "no"
	}
	return d.String()
}

// stepNames returns the names of all steps.
func stepNames(rep *turnstone.CompareReport) (names []string) {
	seen := map[string]bool{}
	for _, t := range rep.Turns {
		for _, s := range t.Steps {
			if !seen[s.Name] {
				names = append(names, s.Name)
			}
			seen[s.Name] = true
		}
	}
	return names
}

func stepCell(s turnstone.ComparedStep) string {
	cell := string(s.Status)
	if s.ExitCode != nil && *s.ExitCode != 0 {
		cell += fmt.Sprintf(", exit %d", *s.ExitCode)
	}
	if s.Millis != nil {
		cell += fmt.Sprintf(", %d ms", *s.Millis)
	}
	if s.Output != "" {
		cell += ": " + code(s.Output)
	}
	return cell
}

// plain returns a text for a table's cell without markdown.
func plain(s string) string {
	s = terminal.Printable(s)
	return strings.NewReplacer("\\", "\\\\", "|", "\\|", "`", "\\`", "*", "\\*", "_", "\\_",
		"[", "\\[", "<", "\\<").Replace(s)
}

// code returns a text for a table's cell as code.
func code(s string) string {
	s = strings.ReplaceAll(terminal.Printable(s), "|", `\|`)
	fence := "`"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	if fence != "`" {
		return fence + " " + s + " " + fence
	}
	return fence + s + fence
}

// errNoTurn is the cause if results are compared with nothing.
var errNoTurn = errors.New("--results compares two turns: name the other one")

// CheckResults reports that --results has no second turn.
func CheckResults(results bool, to string) error {
	if results && to == "" {
		return errNoTurn
	}
	return nil
}

// PrintResults prints the comparison of two turns' results.
func PrintResults(w io.Writer, d *turnstone.ResultsDiff) {
	if was, is := deterministic(d.OldDeterminism), deterministic(d.NewDeterminism); was != is {
		terminal.Printf(w, "deterministic: %s -> %s\n", was, is)
	}
	took := func(ms int64) string { return terminal.Elapsed(time.Duration(ms) * time.Millisecond) }
	if d.Same {
		terminal.Printf(w, "results: the same, %s before, %s now\n", took(d.OldMillis),
			took(d.NewMillis))
		return
	}
	terminal.Printf(w, "results: %s -> %s, %s -> %s\n", d.OldResult, d.NewResult,
		took(d.OldMillis), took(d.NewMillis))
	for i := range d.Steps {
		if !d.Steps[i].Same {
			printStep(w, &d.Steps[i])
		}
	}
}

func printStep(w io.Writer, s *turnstone.StepCompare) {
	name := terminal.Name(s.Name)
	switch {
	case s.OldStatus == nil:
		terminal.Printf(w, "A step %s (%s)\n", name, *s.NewStatus)
		return
	case s.NewStatus == nil:
		terminal.Printf(w, "D step %s (%s)\n", name, *s.OldStatus)
		return
	}
	terminal.Printf(w, "M step %s: %s%s -> %s%s\n", name, *s.OldStatus, exitOf(s.OldExit),
		*s.NewStatus, exitOf(s.NewExit))
	for _, o := range []struct {
		name string
		*turnstone.OutputCompare
	}{{"stdout", s.Stdout}, {"stderr", s.Stderr}} {
		if c := o.OutputCompare; c != nil {
			terminal.Printf(w, "  %s: %d -> %d bytes", o.name, c.OldBytes, c.NewBytes)
			if c.Line > 0 {
				terminal.Printf(w, ", line %d: %s -> %s", c.Line, terminal.Name(c.Old),
					terminal.Name(c.New))
			}
			terminal.Println(w, "")
		}
	}
	for _, c := range s.Commands {
		terminal.Printf(w, "  %s line %d: %s%s\n", c.Status, c.Line, terminal.Name(c.Text),
			exitChange(c))
	}
	if s.CommandsNote != "" {
		terminal.Println(w, "  commands: "+s.CommandsNote)
	}
}

func exitOf(code *int) string {
	if code == nil {
		return ""
	}
	return fmt.Sprintf(" (exit %d)", *code)
}

func exitChange(c turnstone.CommandChange) string {
	if c.Status != turnstone.ChangeModified {
		return ""
	}
	return exitOf(c.OldExit) + " ->" + exitOf(c.NewExit)
}
