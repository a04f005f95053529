package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/secret"
)

// A Progress shows a turn's progress to the user on standard error. On a terminal the last line is
// live: it shows the running step, its duration, and its current output line. Otherwise there are
// only plain lines.
//
// A bar indents a step's output, so that a step cannot imitate turn's own words, and a sanitizer
// cleans the output. A progress is safe for concurrent use.
type Progress struct {
	out   io.Writer
	style style
	total int // steps
	now   func() time.Time
	// masks secrets in a line without escape sequences; nil: there are none
	mask func(text string) string

	mu      sync.Mutex
	what    string // the running step or preparation; empty: none
	since   time.Time
	step    *document.Step
	streams map[turnstone.Stream]*lines
	partial []byte // the incomplete line in the live line
	drawn   bool   // the live line is on the screen
	detail  string // the progress of the running operation; empty: unknown
	told    time.Time

	stop chan struct{}
	done sync.WaitGroup
}

// tick is the interval between updates of the live line.
const tick = 200 * time.Millisecond

// Hide masks secrets in the output of steps that the sanitizer makes whole again.
func (p *Progress) Hide(pairs []string) {
	if s, err := secret.New(pairs); err == nil && s != nil { // the executor reports an error
		p.mask = s.Written().Mask
	}
}

// ShowProgress returns a Progress on f for a document with total steps; 0: unknown. Close it.
func ShowProgress(f *os.File, quiet bool, total int) *Progress {
	return newProgress(f, styleOf(f, quiet), total)
}

func newProgress(out io.Writer, s style, total int) *Progress {
	p := &Progress{out: out, style: s, total: total, now: time.Now, stop: make(chan struct{})}
	if s.live && !s.quiet {
		p.done.Go(p.tick)
	}
	return p
}

func (p *Progress) tick() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

// Close removes the live line from the screen.
func (p *Progress) Close() {
	close(p.stop)
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flush()
	p.what = ""
	p.erase()
}

// Preparing implements executor.Observer.
func (p *Progress) Preparing(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.since, p.step, p.detail, p.told = what, p.now(), nil, "", p.now()
	p.say("%s", what)
}

// StepStarted implements executor.Observer.
func (p *Progress) StepStarted(step *document.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.since, p.step = step.Name, p.now(), step
	p.streams = map[turnstone.Stream]*lines{}
	for _, s := range []turnstone.Stream{turnstone.Stdout, turnstone.Stderr} {
		p.streams[s] = &lines{clean: newSanitizer(p.style.colors)}
	}
	p.say("%s", p.paint(bold, p.title(step)))
}

// StepOutput implements executor.Observer.
func (p *Progress) StepOutput(_ *document.Step, stream turnstone.Stream, b []byte) {
	if p.style.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.streams[stream]
	if l == nil {
		return // output of an unannounced step
	}
	p.print(l.add(b))
	p.partial = l.rest
}

// StepFinished implements executor.Observer.
func (p *Progress) StepFinished(step *document.Step, r turnstone.StepReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flush()
	began := p.step == step
	p.what, p.step = "", nil
	text := string(r.Status)
	switch {
	case r.Status == turnstone.StepFailed && r.ExitCode != nil:
		text += fmt.Sprintf(", exit %d", *r.ExitCode)
	case r.Status == turnstone.StepSkipped:
		p.say("%s", p.paint(dim, p.title(step)+": skipped"))
		return
	}
	if r.Note != "" {
		text += ": " + r.Note
	}
	color := green
	if r.Status != turnstone.StepPassed {
		color = red
	}
	before := ""
	if !began {
		before = p.title(step) + ": "
	}
	took := Elapsed(time.Duration(r.Millis) * time.Millisecond)
	p.say("%s%s (%s)", before, p.paint(color, text), took)
}

// Say prints one line of turn's own text.
func (p *Progress) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.say(format, args...)
}

// Settle ends the operation of Preparing: another user of the terminal follows.
func (p *Progress) Settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.what = ""
}

// Write prints whole lines beside the live line, such as log records; quiet does not silence them.
func (p *Progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	n, err := p.out.Write(b)
	p.draw()
	return n, err
}

func (p *Progress) title(step *document.Step) string {
	if p.total == 0 {
		return fmt.Sprintf("step %d %s", step.Index, step.Name)
	}
	return fmt.Sprintf("step %d/%d %s", step.Index, p.total, step.Name)
}

// say prints a line, like Printf.
func (p *Progress) say(format string, args ...any) {
	if p.style.quiet {
		return
	}
	p.erase()
	_, _ = Printf(p.out, format+"\n", args...) // an error cannot be reported
	p.draw()
}

// print writes whole lines of a step's output, as one write.
func (p *Progress) print(whole [][]byte) {
	if p.style.quiet || len(whole) == 0 {
		return
	}
	var b bytes.Buffer
	for _, line := range whole {
		b.WriteString("  | ")
		b.Write(p.masked(line))
		if p.style.colors && bytes.IndexByte(line, ansi.ESC) >= 0 {
			b.WriteString(reset)
		}
		b.WriteByte('\n')
	}
	p.erase()
	_, _ = p.out.Write(b.Bytes())
	p.draw()
}

// masked returns line without secrets that escape sequences have split; other secrets are already
// masked.
func (p *Progress) masked(line []byte) []byte {
	if p.mask == nil {
		return line
	}
	plain := ansi.Strip(string(line))
	if text := p.mask(plain); text != plain {
		return []byte(text)
	}
	return line
}

// flush prints the rest of a step's output that has no newline.
func (p *Progress) flush() {
	p.partial = nil
	for _, s := range []turnstone.Stream{turnstone.Stdout, turnstone.Stderr} {
		if l := p.streams[s]; l != nil && len(l.rest) > 0 {
			p.print([][]byte{bytes.TrimRight(l.rest, "\r")})
		}
	}
	p.streams = nil
}

func (p *Progress) erase() {
	if p.drawn {
		_, _ = io.WriteString(p.out, "\r\x1b[2K")
		p.drawn = false
	}
}

func (p *Progress) draw() {
	if !p.style.live || p.style.quiet || p.what == "" {
		return
	}
	line := p.what + " " + Elapsed(p.now().Sub(p.since).Truncate(100*time.Millisecond))
	if p.detail != "" {
		line += " " + p.detail
	}
	if len(p.partial) > 0 {
		line += " | " + ansi.Strip(string(p.masked(p.partial)))
	}
	line = ansi.Truncate(Printable(line), max(p.style.width()-1, 1), "…")
	p.drawn = true
	_, _ = Printf(p.out, "\r\x1b[2K%s", p.paint(dim, line))
}

// The colors of turn's own words.
const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	reset = "\x1b[0m"
)

// paint returns text, which is made printable, in a color.
func (p *Progress) paint(color, text string) own {
	if text = Printable(text); !p.style.colors {
		return own(text)
	}
	return own(color + text + reset)
}

// lines splits one output stream of a step into sanitized lines.
type lines struct {
	clean *sanitizer
	rest  []byte // the last line, until its newline
}

// maxLine bounds the bytes of a line that is held back until its newline.
const maxLine = 8 << 10

// add takes the next bytes and returns the lines that they complete, which are valid until the next
// call. As on a terminal, a carriage return restarts the line: only the last state of a progress
// bar is shown.
func (l *lines) add(b []byte) [][]byte {
	var whole [][]byte
	for text := l.clean.clean(b); len(text) > 0; {
		end := bytes.IndexByte(text, '\n')
		part, ended := text, false
		if end >= 0 {
			part, text, ended = text[:end], text[end+1:], true
		} else {
			text = nil
		}
		l.append(part)
		if ended || len(l.rest) > maxLine {
			whole = append(whole, bytes.TrimSuffix(l.rest, []byte("\r")))
			l.rest = nil
		}
	}
	return whole
}

// append adds part, which has no newline. A carriage return at its end may be half of a CR LF, and
// erases only before further text.
func (l *lines) append(part []byte) {
	for len(part) > 0 {
		if n := len(l.rest); n > 0 && l.rest[n-1] == '\r' && part[0] != '\r' {
			l.rest = l.rest[:0]
		}
		i := bytes.IndexByte(part, '\r')
		if i < 0 {
			l.rest = append(l.rest, part...)
			return
		}
		l.rest = append(l.rest, part[:i+1]...)
		part = part[i+1:]
	}
}
