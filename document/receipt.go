package document

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"turnstone.dev/turnstone"
)

// The front matter key that a receipt adds, and its entry for a document without front matter.
const (
	turnKey    = "turn"
	addedKey   = "frontmatter"
	addedValue = "added"
)

// maxNote bounds a note or an error in a receipt in bytes.
const maxNote = 1000

// An edit replaces the source's bytes from..to.
type edit struct {
	from, to int
	text     []byte
}

// Clean returns the author's text: the source without results and without a receipt's additions to
// the front matter.
func (d *Document) Clean() []byte { return d.apply(d.cuts()) }

// Receipt returns the document with a result below each step and the turn: map in the front matter,
// replacing old results and an old map. All other bytes are unchanged. results[i] is the result of
// d.Steps[i]; a step without a result is shown as not run. The receipt is a valid document: it
// parses to the same steps and front matter.
func (d *Document) Receipt(info TurnInfo, results []StepResult) []byte {
	edits := append(d.cuts(), d.frontEdit(info))
	for i, s := range d.Steps {
		r := StepResult{Status: turnstone.StepSkipped, Note: "not run"}
		if i < len(results) {
			r = results[i]
		}
		l := d.layout.steps[i]
		edits = append(edits, edit{l.insert, l.insert, d.renderResult(s, r, l.prefix)})
	}
	return d.apply(edits)
}

// cuts returns the edits that remove a receipt's additions.
func (d *Document) cuts() []edit {
	var edits []edit
	if f := d.layout.front; f.whole {
		edits = append(edits, edit{from: f.start, to: f.end})
	} else if f.turn < f.turnEnd {
		edits = append(edits, edit{from: f.turn, to: f.turnEnd})
	}
	edits = append(edits, d.layout.evidence...)
	for _, l := range d.layout.steps {
		if l.cutFrom < l.cutTo {
			edits = append(edits, edit{from: l.cutFrom, to: l.cutTo})
		}
	}
	return edits
}

// apply returns the source after the edits, which do not overlap. Of two edits at the same offset,
// the insertion comes first.
func (d *Document) apply(edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	size := len(d.Source)
	for _, e := range edits {
		size += len(e.text)
	}
	out := make([]byte, 0, size)
	at := 0
	for _, e := range edits {
		out = append(out, d.Source[at:e.from]...)
		out = append(out, e.text...)
		at = e.to
	}
	return append(out, d.Source[at:]...)
}

// frontEdit appends the turn: map to the front matter.
func (d *Document) frontEdit(info TurnInfo) edit {
	f := d.layout.front
	if f.present && !f.whole {
		return edit{f.close, f.close, d.renderTurn(info, f.indent, false)}
	}
	rule := []byte("---" + d.layout.eol)
	return edit{f.start, f.start, slices.Concat(rule, d.renderTurn(info, 0, true), rule)}
}

func (d *Document) renderTurn(info TurnInfo, indent int, added bool) []byte {
	m := &yaml.Node{Kind: yaml.MappingNode}
	put := func(key, tag, value string) {
		if value != "" {
			m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key},
				&yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value})
		}
	}
	text := func(key, value string) { put(key, "!!str", oneLine(value, maxNote)) }
	text("id", string(info.ID))
	put("started", "!!timestamp", info.Started.UTC().Format(time.RFC3339))
	text("duration", info.Duration.Round(time.Millisecond).String())
	text("template", string(info.Template))
	text("image", info.Image)
	text("substrate", info.Substrate)
	text("isolation", info.Isolation)
	text("machine", info.Machine)
	if info.Determinism != nil {
		text(deterministicKey, info.Determinism.String())
	}
	text("result", string(info.Result))
	text("error", info.Error)
	text("session", info.Session)
	if info.Number > 0 {
		put("number", "!!int", strconv.Itoa(info.Number))
	}
	text("branch", info.Branch)
	for i, id := range info.Parents {
		text([]string{"parent", "merged"}[min(i, 1)], string(id))
	}
	text("start", info.Start)
	text("resumed", info.Resumed)
	text("fs", string(info.FSHash))
	text("layer", string(info.Layer))
	text("changes", info.Changes)
	text("secrets", strings.Join(info.Secrets, ", "))
	text("network", info.Network)
	text("home", info.Home)
	text("home_began", string(info.HomeBegan))
	text("home_ended", string(info.HomeEnded))
	if info.Lifetime != turnstone.LifetimeTurn {
		text("lifetime", string(info.Lifetime))
	}
	if info.Snapshot != SnapshotNone {
		text("snapshot", string(info.Snapshot))
	}
	if added {
		text(addedKey, addedValue)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	// Encoding cannot fail: the writer is a buffer, and all values are scalars.
	_ = enc.Encode(&yaml.Node{Kind: yaml.MappingNode,
		Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: turnKey}, m}})
	_ = enc.Close()
	return d.lines(strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n"),
		strings.Repeat(" ", indent), true)
}

// lines joins lines with the document's line ending and adds a prefix to each: the line ending
// comes after each line, or before.
func (d *Document) lines(lines []string, prefix string, after bool) []byte {
	var b bytes.Buffer
	bare := strings.TrimRight(prefix, " ")
	for _, line := range lines {
		if !after {
			b.WriteString(d.layout.eol)
		}
		if line == "" {
			b.WriteString(bare) // no blanks at the end of a line
		} else {
			b.WriteString(prefix)
			b.WriteString(line)
		}
		if after {
			b.WriteString(d.layout.eol)
		}
	}
	return b.Bytes()
}

// renderResult writes a result. Its lines outside of fences are never empty because an empty line
// would turn a tight list into a loose list.
func (d *Document) renderResult(s *Step, r StepResult, prefix string) []byte {
	status := []string{"**" + escapeMarkdown(oneLine(string(r.Status), maxName)) + "**"}
	if r.ExitCode != nil {
		status = append(status, fmt.Sprintf("exit %d", *r.ExitCode))
	}
	if r.Status != turnstone.StepSkipped {
		status = append(status, humanDuration(r.Duration))
	}
	if note := oneLine(r.Note, maxNote); note != "" {
		status = append(status, escapeMarkdown(note))
	}
	lines := []string{beginMarker(s), strings.Join(status, " · ")}
	lines = appendFailures(lines, r.Failures)
	lines = appendNetwork(lines, r.Network)
	lines = appendOutput(lines, "stdout", r.Stdout)
	lines = appendOutput(lines, "stderr", r.Stderr)
	lines = appendCommands(lines, r)
	return d.lines(append(lines, endMarker), prefix, false)
}

// appendOutput writes a stream: a line with its name, and a fence.
func appendOutput(lines []string, name string, o Output) []string {
	if o.Size <= 0 && len(o.Head) == 0 {
		return lines
	}
	s := o.show()
	label := []string{name}
	switch {
	case s.binary:
		label = append(label, "binary, "+exactSize(o.Size),
			escapeMarkdown(oneLine(string(o.digest()), maxNote)))
	case s.cut:
		label = append(label, exactSize(o.Size)+" in "+plural(o.Lines, "line")+", cut")
	case s.text == "":
		label = append(label, exactSize(o.Size)+", nothing to see")
	}
	if file := oneLine(o.File, maxNote); file != "" {
		label = append(label, "whole in "+codeSpan(file))
	}
	if d := o.digest(); s.cut && d != "" { // of the part that is not shown, too
		label = append(label, escapeMarkdown(oneLine(string(d), maxNote)))
	}
	if note := oneLine(o.Note, maxNote); note != "" {
		label = append(label, escapeMarkdown(note))
	}
	lines = appendParagraph(lines, strings.Join(label, " · "))
	if s.binary || s.text == "" {
		return lines
	}
	return appendFence(lines, strings.Split(strings.TrimSuffix(s.text, "\n"), "\n")...)
}

// appendFence appends text in a fence that is longer than any run of its characters inside.
func appendFence(lines []string, text ...string) []string {
	longest := 2
	for _, line := range text {
		longest = max(longest, longestRun(line))
	}
	fence := strings.Repeat("`", 1+longest)
	return append(append(append(lines, fence+"text"), text...), fence)
}

// appendParagraph appends a line of text.
func appendParagraph(lines []string, line string) []string {
	if !strings.HasPrefix(lines[len(lines)-1], "`") {
		// The previous line is in the same paragraph: a hard line break separates the two.
		lines[len(lines)-1] += `\`
	}
	return append(lines, line)
}

// longestRun returns the length of the longest run of backquotes in s.
func longestRun(s string) int {
	longest, run := 0, 0
	for i := range len(s) {
		if s[i] != '`' {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return longest
}

// escapeMarkdown escapes s, a single line, as plain text in a paragraph (CommonMark 0.31, section
// 2.4).
func escapeMarkdown(s string) string {
	return strings.NewReplacer(`\`, `\\`, "`", "\\`", `*`, `\*`, `_`, `\_`, `[`, `\[`, `]`, `\]`,
		`<`, `\<`, `>`, `\>`, `&`, `\&`, `#`, `\#`, `|`, `\|`, `~`, `\~`, `$`, `\$`, `!`,
		`\!`).Replace(s)
}

// codeSpan quotes s, a single line, as a code span (CommonMark 0.31, section 6.1).
func codeSpan(s string) string {
	ticks := strings.Repeat("`", 1+longestRun(s))
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") {
		s = " " + s + " "
	}
	return ticks + s + ticks
}

// humanDuration returns d with two or three significant digits.
func humanDuration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}
