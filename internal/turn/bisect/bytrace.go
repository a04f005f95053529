package bisect

import (
	"context"

	"turnstone.dev/turnstone"
)

// A seen is a command whose recorded output or exit code differs from that of a replay.
type seen struct {
	unit     int // index in the units
	what     string
	old, new string // from the first line that differs; empty: the outputs are equal
}

// byTrace returns the first command that differs in the record a and its replay b, as their traces
// say; nil: the traces do not tell. A trace is a guest's, so it is a hint only.
func (p *pair) byTrace(ctx context.Context, a, b *turnstone.TurnRecord) (*seen, error) {
	if a.Trace == nil || b.Trace == nil {
		return nil, nil
	}
	var before, after turnstone.TraceReport
	if err := p.cs.ReadTrace(ctx, a, before.Add); err != nil {
		return nil, err
	}
	if err := p.cs.ReadTrace(ctx, b, after.Add); err != nil {
		return nil, err
	}
	for i := range min(len(a.Steps), len(b.Steps), len(before.Steps), len(after.Steps)) {
		var texts [len(streams)][2]string
		for n, st := range streams {
			for j, rec := range []*turnstone.TurnRecord{a, b} {
				var err error
				if texts[n][j], err = p.output(ctx, st.of(&rec.Steps[i])); err != nil {
					return nil, err
				}
			}
		}
		s, differs := p.inStep(i, texts,
			[2][]turnstone.CommandReport{before.Steps[i].Ran, after.Steps[i].Ran})
		if s != nil || differs {
			return s, nil
		}
	}
	return nil, nil
}

// streams are the outputs of a step, with the part of a command.
var streams = [2]struct {
	name string
	of   func(*turnstone.RecordStep) *turnstone.Content
	part func(*turnstone.CommandReport) *turnstone.Range
}{
	{"standard output", func(s *turnstone.RecordStep) *turnstone.Content { return s.Stdout },
		func(c *turnstone.CommandReport) *turnstone.Range { return c.Stdout }},
	{"standard error", func(s *turnstone.RecordStep) *turnstone.Content { return s.Stderr },
		func(c *turnstone.CommandReport) *turnstone.Range { return c.Stderr }},
}

// inStep returns the first command of the step that differs, in two runs with the given outputs and
// commands. differs reports that an output differs, also if no command is known that wrote it alone.
func (p *pair) inStep(step int, texts [len(streams)][2]string,
	ran [2][]turnstone.CommandReport) (first *seen, differs bool) {
	keep := func(s *seen) {
		if first == nil || s.unit < first.unit {
			first = s
		}
	}
	for n, st := range streams {
		text := texts[n]
		at := firstByte(text[0], text[1])
		if at < 0 {
			continue
		}
		differs = true
		s := &seen{unit: -1, what: st.name}
		for i := range ran {
			u, end, alone := p.writer(step, ran[i], st.part, at)
			if !alone || u >= 0 && s.unit >= 0 && u != s.unit {
				return nil, true
			}
			if u >= 0 {
				s.unit = u
				text[i] = text[i][:max(at, min(end, len(text[i])))]
			} else {
				text[i] = text[i][:at]
			}
		}
		if s.unit < 0 {
			return nil, true
		}
		s.old, s.new = fromDifference(text[0], text[1])
		keep(s)
	}
	for n, u := range p.units {
		if was, is := exitOf(ran[0], u), exitOf(ran[1], u); u.step == step && was != nil &&
			is != nil && *was != *is && (first == nil || n < first.unit) {
			keep(&seen{unit: n, what: "exit code"})
		}
	}
	return first, differs
}

// writer returns the only unit of the step whose commands wrote the byte at, and where their output
// ends; -1: none did. alone is false if several did, such as a command in the background.
func (p *pair) writer(step int, ran []turnstone.CommandReport,
	part func(*turnstone.CommandReport) *turnstone.Range, at int) (unit, end int, alone bool) {
	unit = -1
	for i := range ran {
		c := &ran[i]
		r := part(c)
		if c.Parent != -1 || c.Span == nil || r == nil || int64(at) < r.From || int64(at) >= r.To {
			continue
		}
		n := p.unitAt(step, c.Span.From)
		if n < 0 || unit >= 0 && n != unit {
			return -1, 0, false
		}
		unit, end = n, max(end, int(min(r.To, maxOutput)))
	}
	return unit, end, true
}

// unitAt returns the unit of the step with the byte at of the script; -1: there is none.
func (p *pair) unitAt(step int, at int64) int {
	for n, u := range p.units {
		if u.step == step && at >= int64(u.start) && at < int64(u.end) {
			return n
		}
	}
	return -1
}

// exitOf returns the exit code of the last command at the top level of u that ran; nil: unknown.
func exitOf(ran []turnstone.CommandReport, u unit) (code *int) {
	for i := range ran {
		if c := &ran[i]; c.Parent == -1 && c.Span != nil && c.Span.From >= int64(u.start) &&
			c.Span.From < int64(u.end) {
			code = c.ExitCode
		}
	}
	return code
}

// firstByte returns the offset of the first byte that differs; -1: the texts are equal.
func firstByte(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) == len(b) {
		return -1
	}
	return min(len(a), len(b))
}

// bySeen reports the command s, which differs from the record, but not in two new runs.
func (p *pair) bySeen(s *seen, first *turnstone.ReplayReport) {
	u := p.units[s.unit]
	name := ""
	if u.step < len(first.Turn.Steps) {
		name = first.Turn.Steps[u.step].Name
	}
	p.report.Found = true
	p.report.Command = p.command(s.unit, name)
	c := p.report.Command
	c.Old, c.New = s.old, s.new
	c.Steps = []turnstone.StepDifference{{Name: name, What: []string{s.what}}}
	c.Changes, c.Env = []turnstone.FileDifference{}, []string{}
	p.report.Note = "new runs are the same, and differ from the record as shown: the record has " +
		"another substrate, template or version, or differs in what a tier pins, such as the " +
		"part of a second in a time. A command before it may have changed other files"
}
