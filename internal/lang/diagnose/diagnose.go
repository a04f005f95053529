// Package diagnose finds where in the author's text a fault is, given what a
// step's commands wrote to standard error: a Python traceback, a node stack, a
// message of bash, jq, sqlite3, psql, awk, perl or ruby names a line of the code
// that it was given, and that code stands in a script, in quotes or in a
// here-document.
//
// What is read was written by a guest, which may write anything: the work is
// bounded by the text's length, and a place is only ever one inside a script.
// A guest that lies can point at a wrong line of the author's text, and do no more.
package diagnose

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// Limits of one Find.
const (
	MaxStderr  = 64 << 10 // bytes of standard error that are read: the last
	MaxMessage = 300      // bytes of a message
	MaxFrames  = 32       // places of one finding: the innermost
	maxReports = 64       // messages that are looked into: the last
	maxNames   = 1024     // names of files that are looked up, for one failure
	maxFound   = 16       // findings of one failure
	maxLocated = 256      // frames that are looked for in the scripts, for one failure
	maxLine    = 4 << 10  // bytes of a line that are read: the first
)

// A Step is one step of a turn, as far as its text matters.
type Step struct {
	Name string // the author's; for nothing but reading
	// Path of the script in the sandbox. bash begins its messages with it.
	Path string
	// Dir is the working directory in which the step began, absolute. Empty when
	// it is not known: then files that a script names by a relative path are
	// found by that name alone.
	Dir string
	// Script is the step's text, with its Source; nil for a step that nothing is
	// known of. Which files its here-documents are written to, is in its commands'
	// Embedded.
	Script *syntax.Script
}

// A Failure is a command that failed.
type Failure struct {
	Command  int // index in the script's Commands, or -1 for the step as a whole
	ExitCode int
	Stderr   []byte // the command's part of the step's standard error; the last 64 KiB are read
}

// A Finding is a fault with its place.
type Finding struct {
	Span    syntax.Span `json:"span"`    // in the script of the step Step
	Step    int         `json:"step"`    // index of a step, which may be an earlier one than that which failed
	Tool    string      `json:"tool"`    // "bash", "python", "node", …, or the name of the program that says Message
	Message string      `json:"message"` // one line, bounded, without control characters
	// Frames are the places of a traceback that are in the steps' scripts, outermost
	// first; Span is the last of them. Empty when the tool names one place only.
	Frames []Frame `json:"frames,omitempty"`
}

// A Frame is one place of a traceback.
type Frame struct {
	Step int         `json:"step"`
	Span syntax.Span `json:"span"`
}

// A Diagnoser knows the steps of a turn. It is not changed after Steps, and safe
// for concurrent use.
type Diagnoser struct {
	steps   []Step
	indexes []*index // by step; nil without a script
	regions []region
	byBase  map[string][]int // the regions of files, by the last part of the name
}

// Steps returns a Diagnoser for the steps so far, the failing one included. It
// keeps the scripts, which must not be changed afterwards.
func Steps(scripts []Step) *Diagnoser {
	d := &Diagnoser{steps: slices.Clone(scripts), byBase: map[string][]int{}}
	for _, step := range d.steps {
		d.indexes = append(d.indexes, newIndex(step.Script))
	}
	for i := range d.steps {
		d.addRegions(i)
	}
	for i, r := range d.regions {
		if r.from == file {
			d.byBase[path.Base(r.path)] = append(d.byBase[path.Base(r.path)], i)
		}
	}
	return d
}

// Find returns what f's standard error says about places in the scripts, the most
// telling first: what was said last, and warnings after errors. It returns nil
// when nothing is known. step is the index of the step that failed.
func (d *Diagnoser) Find(step int, f Failure) []Finding {
	if step < 0 || step >= len(d.steps) || d.steps[step].Script == nil {
		return nil
	}
	c := d.newSearch(step, f.Command)
	ls := lines(f.Stderr)
	reports := scan(c, ls)
	if len(reports) > maxReports {
		reports = reports[len(reports)-maxReports:]
	}
	slices.Reverse(reports)
	slices.SortStableFunc(reports, func(a, b report) int { return a.rank - b.rank })
	var found []Finding
	for _, r := range reports {
		if len(found) == maxFound {
			break
		}
		if finding, ok := c.finding(r); ok && !slices.ContainsFunc(found, func(o Finding) bool { return same(o, finding) }) {
			found = append(found, finding)
		}
	}
	if len(found) > 0 {
		return found
	}
	if r, ok := ownWord(c, ls); ok {
		if finding, ok := c.finding(r); ok {
			return []Finding{finding}
		}
	}
	return nil
}

func same(a, b Finding) bool {
	return a.Step == b.Step && a.Span == b.Span && a.Tool == b.Tool && a.Message == b.Message
}

// A search is what one Find works on.
type search struct {
	d        *Diagnoser
	step     int
	command  int // -1: any
	script   *syntax.Script
	inside   []bool          // by command: it is the failing one or a part of it; all, if that is not known
	pipeline []bool          // by command: it is a part of the pipeline that the failing one is in
	function []bool          // by command: it is a part of a function, and runs where that is called
	words    map[string]bool // of the failing command's text
	budget   int             // frames that are still looked for
	programs map[string]bool // of the step: see runs
	known    map[string]bool // what hasFile has said
	onlys    map[onlyKey]int // what only has said
}

func (d *Diagnoser) newSearch(step, command int) *search {
	c := &search{d: d, step: step, command: command, script: d.steps[step].Script, budget: maxLocated, known: map[string]bool{}, onlys: map[onlyKey]int{}, words: map[string]bool{}}
	if c.command < 0 || c.command >= len(c.script.Commands) {
		c.command = -1
	}
	c.inside = make([]bool, len(c.script.Commands))
	c.pipeline = make([]bool, len(c.script.Commands))
	c.function = make([]bool, len(c.script.Commands))
	pipeline := c.command
	if c.command >= 0 {
		if p := c.script.Commands[c.command].Parent; p >= 0 && p < c.command && c.script.Commands[p].Kind == syntax.KindPipeline {
			pipeline = p
		}
	}
	for i, cmd := range c.script.Commands {
		parent := cmd.Parent >= 0 && cmd.Parent < i // what else there may be, a parser has wrong
		c.inside[i] = c.command < 0 || i == c.command || (parent && c.inside[cmd.Parent])
		c.pipeline[i] = c.command < 0 || i == pipeline || (parent && c.pipeline[cmd.Parent])
		c.function[i] = cmd.Kind == syntax.KindFunction || (parent && c.function[cmd.Parent])
	}
	if c.command >= 0 {
		span := c.clip(c.step, c.script.Commands[c.command].Span)
		text := c.script.Source[span.Start:min(span.End, span.Start+maxLine)]
		for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" \t\n\"'<>|&;()=", r) }) {
			c.words[path.Clean(word)] = true
		}
	}
	return c
}

// runs reports whether the step runs one of the programs, maybe by another one:
// sudo psql, timeout 5 ruby.
func (c *search) runs(programs ...string) bool {
	if c.programs == nil {
		c.programs = map[string]bool{}
		for _, cmd := range c.script.Commands {
			c.programs[path.Base(cmd.Program)] = true
			for _, w := range cmd.Words[:min(len(cmd.Words), 10)] {
				c.programs[path.Base(w)] = true
			}
		}
	}
	return slices.ContainsFunc(programs, func(p string) bool { return c.programs[p] })
}

// A report is one message of a tool.
type report struct {
	tool    string
	message string
	frames  []frame // outermost first
	earlier []frame // of the exceptions that led to this one, if frames say nothing
	rank    int     // 0 for an error; what ranks higher is less telling
	// whole says that a message without any place in the text still belongs to the
	// code of the tool, or to the command.
	whole bool
	code  bool // that of the tool, when it is one piece
}

// A source is what a tool says the code came from.
type source int

const (
	argument source = iota // from the command line: python -c, node -e
	input                  // from standard input
	code                   // from one of these two
	file                   // from the file that is named
	script                 // from the step's own script
	data                   // what a filter reads, and not its program
	nowhere                // in nobody's text: a library, a part of the tool
)

// A frame is a place as a tool names it.
type frame struct {
	from   source
	name   string // of the file
	line   int    // from 1; 0 when only the quote tells
	limit  int    // with line 0: the line is not below this one; 0 when that is not known
	step   int    // of a script
	column int    // from 1, in characters; 0 when it is not known
	// quote is the line as the tool shows it, or a part of it. mark and markEnd are
	// the bytes of it below which it puts its caret; mark is -1 without one.
	quote         string
	mark, markEnd int
	loose         bool     // the quote is of the text from line on, with other blanks
	words         []string // what the message is about, to be looked for in the line
}

// finding gives r its place in the scripts.
func (c *search) finding(r report) (Finding, bool) {
	f := Finding{Tool: r.tool, Message: oneLine(r.message)}
	if f.Message == "" {
		return f, false
	}
	frames := c.locateAll(r.tool, r.frames)
	if len(frames) == 0 {
		frames = c.locateAll(r.tool, r.earlier)
	}
	if len(frames) > 0 {
		last := frames[len(frames)-1]
		f.Step, f.Span = last.Step, last.Span
		if len(r.frames) > 1 {
			f.Frames = frames[max(0, len(frames)-MaxFrames):]
		}
		return f, true
	}
	if !r.whole {
		return f, false
	}
	f.Step = c.step
	if r.code {
		if span, ok := c.wholeCode(r.tool); ok {
			f.Span = span
			return f, true
		}
	}
	if c.command < 0 {
		return f, false
	}
	f.Span = c.clip(c.step, c.script.Commands[c.command].Span)
	return f, true
}

func (c *search) locateAll(tool string, frames []frame) []Frame {
	var found []Frame
	for _, f := range slices.Backward(frames[max(0, len(frames)-4*MaxFrames):]) {
		if c.budget--; c.budget < 0 {
			break
		}
		if place, ok := c.locate(tool, f); ok {
			found = append(found, place)
		}
	}
	slices.Reverse(found)
	return found
}

// lines splits the last part of b that is read. A line that has lost its beginning
// is left out.
func lines(b []byte) []string {
	if len(b) > MaxStderr {
		b = b[len(b)-MaxStderr:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	var out []string
	for line := range bytes.Lines(b) {
		line = bytes.TrimRight(line, "\r\n")
		text := string(line[:min(len(line), maxLine)])
		if strings.Contains(text, "\x1b") { // some show errors in colours
			text = ansi.Strip(text)
		}
		out = append(out, text)
	}
	return out
}

// absolute returns name as an absolute path, as far as that can be known.
func absolute(dir, name string) string {
	if dir == "" || path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}
