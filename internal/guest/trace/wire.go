package trace

import (
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/wire"
)

// flagNames are the wire's names of Flags. An exit code represents Exited.
var flagNames = []struct {
	name string
	of   func(*Flags) *bool
}{
	{"async", func(f *Flags) *bool { return &f.Async }},
	{"pipeIn", func(f *Flags) *bool { return &f.PipeIn }},
	{"pipeOut", func(f *Flags) *bool { return &f.PipeOut }},
	{"left", func(f *Flags) *bool { return &f.Left }},
	{"program", func(f *Flags) *bool { return &f.Program }},
	{"trap", func(f *Flags) *bool { return &f.Trap }},
	{"substituted", func(f *Flags) *bool { return &f.Substituted }},
	{"signaled", func(f *Flags) *bool { return &f.Signaled }},
	{"negated", func(f *Flags) *bool { return &f.Negated }},
	{"unfinished", func(f *Flags) *bool { return &f.Unfinished }},
}

// ToWire returns r in its wire form. script, which may be nil, provides a resolved record's
// language, span and stage.
func (r *Record) ToWire(script *syntax.Script) wire.ShellRecord {
	w := wire.ShellRecord{ID: int64(r.ID), Parent: int64(r.Parent), Site: int64(r.Site),
		Command: -1, Kind: string(r.Kind),
		Language: "bash", Text: r.Words, Line: int64(r.Line), PID: int64(r.Pid),
		Start: int64(r.Start), Duration: int64(r.Duration)}
	if script != nil && r.Command >= 0 && r.Command < len(script.Commands) {
		c := &script.Commands[r.Command]
		w.Command, w.Language, w.Stage = int64(r.Command), c.Language, int64(c.Stage)
		span := SpanToWire(c.Span)
		w.Span = &span
		from, to := c.Span.Start, min(c.Span.End, c.Span.Start+MaxText, len(script.Source))
		if r.Words == "" && from >= 0 && from < to {
			// a pipeline, for which bash keeps no words
			w.Text = strings.ToValidUTF8(string(script.Source[from:to]), "\uFFFD")
		}
	}
	if r.Flags.Exited {
		code := int64(r.Exit)
		w.ExitCode = &code
	}
	for _, f := range flagNames {
		if *f.of(&r.Flags) {
			w.Flags = append(w.Flags, f.name)
		}
	}
	w.Stdout, w.Stderr = r.Stdout.toWire(), r.Stderr.toWire()
	if r.Stdin.Source != "" {
		w.Stdin = &wire.ShellStdin{Kind: wire.ShellStdinKind(r.Stdin.Source), Data: r.Stdin.Bytes,
			Digest: string(r.Stdin.Digest)}
		if r.Stdin.Size > 0 {
			w.Stdin.Size = r.Stdin.Size
		}
	}
	return w
}

func (r Range) toWire() *wire.ShellRange {
	if !r.Known {
		return nil
	}
	return &wire.ShellRange{From: r.Start, To: r.End}
}

// SpanToWire returns s in its wire form.
func SpanToWire(s syntax.Span) wire.ShellSpan {
	return wire.ShellSpan{Start: int64(s.Start), End: int64(s.End), Line: int64(s.Line),
		Column:  int64(s.Column),
		EndLine: int64(s.EndLine), EndColumn: int64(s.EndColumn)}
}

// ToWire returns s in its wire form.
func (s *Site) ToWire() wire.ShellSite {
	return wire.ShellSite{ID: int64(s.ID), Kind: string(s.Kind), Command: int64(s.Command),
		Text: s.Words, Cut: s.Cut, Line: int64(s.Line),
		Count: s.Count, Failures: s.Failures, Duration: int64(s.Time)}
}

// FromWire returns the report that a sandbox sent, unresolved, for a caller that has parsed the
// script itself. Its records are ordered by their beginnings; the sandbox sends them ordered by
// their ends. The input is untrusted: FromWire drops impossible and repeated numbers, and Resolve
// checks what it uses.
func FromWire(records []wire.ShellRecord, end *wire.ShellFinishedEvent) *Report {
	rep := &Report{Commands: end.Count, Dropped: end.Dropped, Untraced: end.Untraced}
	seen := make(map[int64]bool, min(len(records), MaxRecords))
	for i := range records {
		if len(rep.Records) == MaxRecords {
			break
		}
		if r, ok := recordFromWire(&records[i]); ok && !seen[records[i].ID] {
			seen[records[i].ID] = true
			rep.Records = append(rep.Records, r)
		}
	}
	slices.SortFunc(rep.Records, func(a, b Record) int { return a.ID - b.ID })
	clear(seen)
	for i := range end.Sites {
		if w := &end.Sites[i]; !seen[w.ID] {
			if s, ok := siteFromWire(w); ok {
				seen[w.ID] = true // at most MaxSites entries
				rep.Sites = append(rep.Sites, s)
			}
		}
	}
	return rep
}

func siteFromWire(w *wire.ShellSite) (Site, bool) {
	s := Site{ID: int(w.ID), Kind: syntax.Kind(w.Kind), Line: int(w.Line), Words: cut(w.Text),
		Cut: w.Cut, Command: -1,
		Count: w.Count, Failures: w.Failures, Time: time.Duration(w.Duration)}
	return s, known(s.Kind) && w.ID >= 0 && w.ID < MaxSites && w.Line >= 0 && w.Line <= 1<<31 &&
		w.Count >= 0 && w.Failures >= 0 && w.Duration >= 0
}

func recordFromWire(w *wire.ShellRecord) (Record, bool) {
	r := Record{ID: int(w.ID), Parent: int(w.Parent), Site: int(w.Site), Command: -1,
		Kind: syntax.Kind(w.Kind), Line: int(w.Line),
		Words: cut(w.Text), Pid: int(w.PID), Start: time.Duration(w.Start),
		Duration: time.Duration(w.Duration)}
	if !known(r.Kind) || w.ID < 0 || w.ID >= MaxRecords || w.Parent >= w.ID || w.Parent < -1 ||
		w.Site < 0 || w.Site >= MaxSites ||
		w.Line < 0 || w.Line > 1<<31 || w.Start < 0 || w.Duration < 0 {
		return r, false
	}
	if w.ExitCode != nil {
		r.Exit, r.Flags.Exited = int(*w.ExitCode&0xff), true
	}
	for _, f := range flagNames {
		for _, name := range w.Flags {
			if name == f.name {
				*f.of(&r.Flags) = true
			}
		}
	}
	r.Stdout, r.Stderr = rangeFromWire(w.Stdout), rangeFromWire(w.Stderr)
	if s := w.Stdin; s != nil && slices.Contains(sources[:], Source(s.Kind)) {
		r.Stdin = Stdin{Source: Source(s.Kind), Size: s.Size, Bytes: s.Data}
		if d, err := turnstone.ParseDigest(s.Digest); err == nil {
			r.Stdin.Digest = d
		}
		if len(r.Stdin.Bytes) > shownInput {
			r.Stdin.Bytes = nil
		}
	}
	return r, true
}

// known reports whether a kind of command exists.
func known(k syntax.Kind) bool { return k != "" && slices.Contains(kinds[:], k) }

func rangeFromWire(w *wire.ShellRange) Range {
	if w == nil || w.From < 0 || w.To < w.From {
		return Range{}
	}
	return Range{Start: w.From, End: w.To, Known: true}
}

func cut(s string) string { return s[:min(len(s), MaxText)] }
