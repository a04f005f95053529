// Package diagnose finds the position of a fault in the author's text from the standard error of a
// step's commands. A Python traceback, a node stack, or a message of bash, jq, sqlite3, psql, awk,
// perl or ruby names a line of its code, and that code is a script, a quoted text or a
// here-document.
//
// The input comes from a guest, which may write anything: the work is bounded by the text's length,
// and a position is always inside a script. A guest can only point at a wrong line of the author's
// text.
package diagnose

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// Limits of a Find.
const (
	MaxStderr  = 64 << 10 // bytes of standard error that are read, from the end
	maxMessage = 300      // bytes of a message
	maxFrames  = 32       // positions of a finding, innermost first
	maxReports = 64       // messages that are examined, from the end
	maxNames   = 1024     // file names that are looked up for a failure
	maxFound   = 16       // findings of a failure
	maxLocated = 256      // frames that are located for a failure
	maxLine    = 4 << 10  // bytes of a line that are read, from the start
)

// A Step is the relevant part of a turn's step.
type Step struct {
	Name string // the author's name; only for readers
	// Path of the script in the sandbox. bash's messages begin with it.
	Path string
	// Dir is the working directory in which the step began, absolute. If it is empty, relative
	// names of files in a script are matched only by name.
	Dir string
	// Script is the step's text with its Source; nil for an unknown step. The Embedded of its
	// commands contains the files to which its here-documents are written.
	Script *syntax.Script
}

// A Failure is a failed command.
type Failure struct {
	Command  int // index in the script's Commands, or -1 for the whole step
	ExitCode int
	Stderr   []byte // the command's part of the step's standard error; the last 64 KiB are read
}

// A Finding is a fault with its position.
type Finding struct {
	Span syntax.Span `json:"span"` // in the script of the step Step
	Step int         `json:"step"` // index of a step, which may precede the failed step
	// "bash", "python", "node", …, or the name of the program that reports Message
	Tool    string `json:"tool"`
	Message string `json:"message"` // a line of bounded length, without control characters
	// Frames are the positions of a traceback in the steps' scripts, outermost first; Span is the
	// last. Empty if the tool names only a single position.
	Frames []Frame `json:"frames,omitempty"`
}

// A Frame is a position of a traceback.
type Frame struct {
	Step int         `json:"step"`
	Span syntax.Span `json:"span"`
}

// A Diagnoser holds the steps of a turn. It does not change after Steps, and is safe for concurrent
// use.
type Diagnoser struct {
	steps   []Step
	indexes []*index // by step; nil without a script
	regions []region
	byBase  map[string][]int // the regions of files, by the last part of the name
}

// Steps returns a Diagnoser for the steps so far, including the failing step. It keeps the scripts,
// which must not be changed afterwards.
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

// Find returns the positions in the scripts that f's standard error refers to, the most significant
// first: later messages before earlier, and errors before warnings. It returns nil if there are
// none. step is the index of the failed step.
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
		if finding, ok := c.finding(r); ok && !slices.ContainsFunc(found, func(o Finding) bool {
			return same(o, finding)
		}) {
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

// A search is the state of a Find.
type search struct {
	d       *Diagnoser
	step    int
	command int // -1: any
	script  *syntax.Script
	// by command: whether it is the failing command or a part of it; all, if that is unknown
	inside   []bool
	pipeline []bool // by command: whether it is a part of the failing command's pipeline
	// by command: whether it is a part of a function, and runs where the function is called
	function []bool
	words    map[string]bool // of the failing command's text
	budget   int             // remaining frames to locate
	programs map[string]bool // of the step: see runs
	known    map[string]bool // results of hasFile
	onlys    map[onlyKey]int // results of only
}

func (d *Diagnoser) newSearch(step, command int) *search {
	c := &search{d: d, step: step, command: command, script: d.steps[step].Script,
		budget: maxLocated, known: map[string]bool{}, onlys: map[onlyKey]int{},
		words: map[string]bool{}}
	if c.command < 0 || c.command >= len(c.script.Commands) {
		c.command = -1
	}
	c.inside = make([]bool, len(c.script.Commands))
	c.pipeline = make([]bool, len(c.script.Commands))
	c.function = make([]bool, len(c.script.Commands))
	pipeline := c.command
	if c.command >= 0 {
		if p := c.script.Commands[c.command].Parent; p >= 0 && p < c.command &&
			c.script.Commands[p].Kind == syntax.KindPipeline {
			pipeline = p
		}
	}
	for i, cmd := range c.script.Commands {
		parent := cmd.Parent >= 0 && cmd.Parent < i // other values are faults of the parser
		c.inside[i] = c.command < 0 || i == c.command || (parent && c.inside[cmd.Parent])
		c.pipeline[i] = c.command < 0 || i == pipeline || (parent && c.pipeline[cmd.Parent])
		c.function[i] = cmd.Kind == syntax.KindFunction || (parent && c.function[cmd.Parent])
	}
	if c.command >= 0 {
		span := c.clip(c.step, c.script.Commands[c.command].Span)
		text := c.script.Source[span.Start:min(span.End, span.Start+maxLine)]
		for _, word := range strings.FieldsFunc(string(text),
			func(r rune) bool { return strings.ContainsRune(" \t\n\"'<>|&;()=", r) }) {
			c.words[path.Clean(word)] = true
		}
	}
	return c
}

// runs reports whether the step runs one of the programs, possibly through another program: sudo
// psql, timeout 5 ruby.
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

// A report is a message of a tool.
type report struct {
	tool    string
	message string
	frames  []frame // outermost first
	earlier []frame // of the exceptions that led to this exception, if frames has no position
	rank    int     // 0 for an error; higher ranks are less significant
	// whole means that a message without a position still refers to the code of the tool, or to the
	// command.
	whole bool
	code  bool // the tool's code, if it is a single piece
}

// A source is the origin of code according to a tool.
type source int

const (
	argument source = iota // from the command line: python -c, node -e
	input                  // from standard input
	code                   // from the command line or standard input
	file                   // from the named file
	script                 // from the step's own script
	data                   // a filter's input, not its program
	nowhere                // not the author's text: a library, a part of the tool
)

// A frame is a position in a tool's terms.
type frame struct {
	from   source
	name   string // of the file
	line   int    // from 1; 0 if only the quote determines the line
	limit  int    // with line 0: an upper bound for the line; 0 if unknown
	step   int    // of a script
	column int    // from 1, in characters; 0 if unknown
	// quote is the line as the tool shows it, or a part of it. mark and markEnd are the bytes of it
	// above its caret; mark is -1 without a caret.
	quote         string
	mark, markEnd int
	loose         bool     // the quote is the text from line on, with different blanks
	words         []string // words that the message refers to, to be searched in the line
}

// finding converts r to positions in the scripts.
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
			f.Frames = frames[max(0, len(frames)-maxFrames):]
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
	for _, f := range slices.Backward(frames[max(0, len(frames)-4*maxFrames):]) {
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

// lines splits the last part of b that is read. It omits a line without its beginning.
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
		if strings.Contains(text, "\x1b") { // some tools color errors
			text = ansi.Strip(text)
		}
		out = append(out, text)
	}
	return out
}

// absolute returns name as an absolute path, as far as possible.
func absolute(dir, name string) string {
	if dir == "" || path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}
