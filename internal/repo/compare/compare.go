// Package compare compares the results of turns: of two in detail, and of several side by side.
package compare

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"znkr.io/diff"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/repo"
)

// Bounds of a comparison. Outputs and commands are a guest's.
const (
	maxOutput   = 16 << 20 // bytes of an output that are compared by line
	maxLine     = 200      // bytes of a line that is shown
	maxChanges  = 100      // commands of a step that are shown
	maxCommands = 10_000   // commands of a step that are compared
)

// A side is one of the turns.
type side struct {
	turn  turnstone.Turn
	rec   *turnstone.TurnRecord
	steps map[string]*turnstone.TraceStepReport // empty: there is no trace
}

func sideOf(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn) (*side, error) {
	rec, err := cs.Record(ctx, t)
	if err != nil {
		return nil, err
	}
	s := &side{turn: t, rec: rec, steps: map[string]*turnstone.TraceStepReport{}}
	if rec.Trace == nil {
		return s, nil
	}
	all := turnstone.TraceReport{}
	if err := cs.ReadTrace(ctx, rec, all.Add); err != nil {
		return nil, err
	}
	for i := range all.Steps {
		s.steps[all.Steps[i].Name] = &all.Steps[i]
	}
	return s, nil
}

// Results compares the results of the turns that from and to name; to is in from's session if it
// names none.
func Results(ctx context.Context, x *repo.Repo, from, to string) (*turnstone.ResultsDiff, error) {
	cs, a, err := x.Resolve(ctx, from)
	if err != nil {
		return nil, err
	}
	b, err := cs.Within(ctx, a.Session, to)
	if err != nil {
		return nil, err
	}
	before, err := sideOf(ctx, cs, a)
	if err != nil {
		return nil, err
	}
	after, err := sideOf(ctx, cs, b)
	if err != nil {
		return nil, err
	}
	d := &turnstone.ResultsDiff{OldResult: before.rec.Result, NewResult: after.rec.Result,
		OldMillis: before.rec.Millis, NewMillis: after.rec.Millis,
		OldDeterminism: before.rec.Determinism, NewDeterminism: after.rec.Determinism,
		Same: before.rec.Result == after.rec.Result, Steps: []turnstone.StepCompare{}}
	for _, name := range names(before.rec, after.rec) {
		s, err := step(ctx, cs, name, before, after)
		if err != nil {
			return nil, err
		}
		d.Same = d.Same && s.Same
		d.Steps = append(d.Steps, s)
	}
	return d, nil
}

// names returns the steps' names, in the order of the first record with them.
func names(records ...*turnstone.TurnRecord) (all []string) {
	seen := map[string]bool{}
	for _, rec := range records {
		for _, s := range rec.Steps {
			if !seen[s.Name] {
				all = append(all, s.Name)
			}
			seen[s.Name] = true
		}
	}
	return all
}

// find returns the step called name, or nil.
func find(rec *turnstone.TurnRecord, name string) *turnstone.RecordStep {
	for i := range rec.Steps {
		if rec.Steps[i].Name == name {
			return &rec.Steps[i]
		}
	}
	return nil
}

// step compares one step.
func step(ctx context.Context, cs *repo.ContextStore, name string, before, after *side) (
	c turnstone.StepCompare, err error) {
	c = turnstone.StepCompare{Name: name, Commands: []turnstone.CommandChange{}}
	a, b := find(before.rec, name), find(after.rec, name)
	if a != nil {
		c.OldStatus, c.OldExit = &a.Status, a.ExitCode
	}
	if b != nil {
		c.NewStatus, c.NewExit = &b.Status, b.ExitCode
	}
	if a == nil || b == nil {
		return c, nil
	}
	if c.Stdout, err = Output(ctx, cs, a.Stdout, b.Stdout); err != nil {
		return c, err
	}
	if c.Stderr, err = Output(ctx, cs, a.Stderr, b.Stderr); err != nil {
		return c, err
	}
	old, now := before.steps[name], after.steps[name]
	if old != nil {
		c.OldMillis = &old.Millis
	}
	if now != nil {
		c.NewMillis = &now.Millis
	}
	switch {
	case old == nil || now == nil:
		c.CommandsNote = "not compared, because a turn has no trace"
	case len(old.Ran) > maxCommands || len(now.Ran) > maxCommands:
		c.CommandsNote = fmt.Sprintf("not compared, because there are %d and %d",
			old.TraceStep.Commands, now.TraceStep.Commands)
	default:
		c.Commands, c.CommandsNote = commands(old.Ran, now.Ran)
	}
	c.Same = a.Status == b.Status && equal(a.ExitCode, b.ExitCode) && c.Stdout == nil &&
		c.Stderr == nil && len(c.Commands) == 0
	return c, nil
}

func equal(a, b *int) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

// commands compares two lists of commands by their texts, then by their exit codes.
func commands(old, now []turnstone.CommandReport) (all []turnstone.CommandChange, note string) {
	texts := func(list []turnstone.CommandReport) (texts []string) {
		for i := range list {
			texts = append(texts, list[i].Kind+"\x00"+list[i].Text)
		}
		return texts
	}
	all = []turnstone.CommandChange{}
	more := 0
	add := func(status turnstone.ChangeStatus, a, b *turnstone.CommandReport) {
		if len(all) == maxChanges {
			more++
			return
		}
		c := turnstone.CommandChange{Status: status}
		for _, r := range []*turnstone.CommandReport{b, a} { // the older one's place
			if r == nil {
				continue
			}
			if c.Text = brief.Clip(brief.Line(r.Text), maxLine); r.Place != nil {
				c.Line = r.Place.Line
			}
		}
		if a != nil {
			c.OldExit = a.ExitCode
		}
		if b != nil {
			c.NewExit = b.ExitCode
		}
		all = append(all, c)
	}
	i, j := 0, 0
	for _, e := range diff.Edits(texts(old), texts(now)) {
		switch e.Op {
		case diff.Match:
			if !equal(old[i].ExitCode, now[j].ExitCode) {
				add(turnstone.ChangeModified, &old[i], &now[j])
			}
			i, j = i+1, j+1
		case diff.Delete:
			add(turnstone.ChangeDeleted, &old[i], nil)
			i++
		case diff.Insert:
			add(turnstone.ChangeAdded, nil, &now[j])
			j++
		}
	}
	if more > 0 {
		note = fmt.Sprintf("and %d more", more)
	}
	return all, note
}

// Output compares two outputs; nil: they are equal.
func Output(ctx context.Context, cs *repo.ContextStore, a, b *turnstone.Content) (
	*turnstone.OutputCompare, error) {
	c := &turnstone.OutputCompare{}
	if a != nil {
		c.OldBytes = a.Size
	}
	if b != nil {
		c.NewBytes = b.Size
	}
	if a == nil && b == nil || a != nil && b != nil && a.Digest == b.Digest {
		return nil, nil
	}
	if max(c.OldBytes, c.NewBytes) > maxOutput {
		return c, nil
	}
	old, err := read(ctx, cs, a)
	if err != nil {
		return nil, err
	}
	now, err := read(ctx, cs, b)
	if err != nil {
		return nil, err
	}
	for c.Line = 1; ; c.Line++ {
		var x, y []byte
		x, old, _ = bytes.Cut(old, []byte("\n"))
		y, now, _ = bytes.Cut(now, []byte("\n"))
		if !bytes.Equal(x, y) || len(old) == 0 || len(now) == 0 {
			c.Old, c.New = shown(x), shown(y)
			return c, nil
		}
	}
}

func read(ctx context.Context, cs *repo.ContextStore, c *turnstone.Content) ([]byte, error) {
	if c == nil || c.Digest == "" {
		return nil, nil
	}
	return cs.Read(ctx, *c, maxOutput)
}

func shown(line []byte) string {
	return brief.Clip(brief.Line(strings.ToValidUTF8(string(line), "\uFFFD")), maxLine)
}

// lastLine returns the last line of an output that is not empty.
func lastLine(ctx context.Context, cs *repo.ContextStore, c *turnstone.Content) (string, error) {
	if c == nil || c.Digest == "" || c.Size > maxOutput {
		return "", nil
	}
	in, err := cs.Store.OpenContent(ctx, *c)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	last := ""
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if text := shown(line); text != "" {
			last = text
		}
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return "", err
		}
	}
}
