// Package console reads a guest's console output: that its agent is ready, or why it never will be.
package console

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

// ReadyLine is the line that the agent prints when a snapshot may be taken.
const ReadyLine = "turnstone-agent: ready"

// failedLine begins the line in which the agent says why it gives up during its start.
const failedLine = "turnstone-agent: failed: "

// panicText begins the kernel's message when it gives up (kernel/panic.c).
const panicText = "Kernel panic - not syncing: "

const (
	kept    = 16 << 10 // bytes of the console that are kept
	maxLine = 512      // bytes of a line that are examined together
)

// A Watch examines a guest's console output. It examines each byte once, however long the output
// is, and only until the agent is ready: afterwards the guest is hostile and can print anything. It
// has one writer; its other methods are safe for concurrent use.
type Watch struct {
	Tail
	ready, failed chan struct{}

	lines  int    // lines that the guest ended until it was ready; mu
	spoken string // the last line with text; mu
	over   bool   // ready or failed
	line   []byte // the end of the unfinished line, less than maxLine
	log    bool   // the unfinished line contains a line of the machine's log
	before string // the guest's output in that line
	why    string // why it failed; written before failed is closed
}

// New returns a Watch that keeps the last 16 KiB.
func New() *Watch {
	return &Watch{Tail: Tail{Limit: kept}, ready: make(chan struct{}), failed: make(chan struct{})}
}

// Running returns a Watch of a guest whose agent was ready before it was saved: its output says
// nothing about its start.
func Running() *Watch {
	w := New()
	w.over = true
	close(w.ready)
	return w
}

// Ready returns a channel that is closed when the agent has reported that it is ready.
func (w *Watch) Ready() <-chan struct{} { return w.ready }

// Failed returns a channel that is closed when the guest has reported that the agent will never be
// ready.
func (w *Watch) Failed() <-chan struct{} { return w.failed }

// A GaveUp is the error of a guest whose kernel or agent has reported that the agent will never be
// ready.
type GaveUp struct {
	Why string // one printable line
}

// Error implements error.
func (e *GaveUp) Error() string { return e.Why }

// Fault returns why the guest gave up during its start; nil: it gave no reason. The output of a
// guest whose agent is ready says nothing about its start: see Words.
func (w *Watch) Fault() *GaveUp {
	select {
	case <-w.failed:
		return &GaveUp{w.why}
	case <-w.ready:
		return nil
	default:
	}
	if match := panicLine.FindStringSubmatch(w.String()); match != nil { // an unfinished line
		return &GaveUp{panicked(match[1])}
	}
	return nil
}

var panicLine = lazyregexp.New(panicText + `([^\r\n]{1,200})`)

// Words quotes the panic that a started guest has printed, to be appended to the error of its
// machine; empty: no panic. It is untrusted.
func (w *Watch) Words() string {
	if match := panicLine.FindStringSubmatch(w.String()); match != nil {
		return fmt.Sprintf("; its console says: %q", clip(panicText+match[1]))
	}
	return ""
}

func panicked(what string) string { return "the guest kernel panicked: " + clip(what) }

// Write implements io.Writer. It does not fail.
func (w *Watch) Write(p []byte) (int, error) {
	_, _ = w.Tail.Write(p)
	for rest := p; len(rest) > 0 && !w.over; {
		n, skip, ended, feeds := min(len(rest), maxLine-len(w.line)), 0, false, false
		if i := bytes.IndexAny(rest[:n], "\r\n"); i >= 0 {
			n, skip, ended, feeds = i, 1, true, rest[i] == '\n'
		}
		w.line = append(w.line, rest[:n]...)
		rest = rest[n+skip:]
		full := len(w.line) == maxLine
		w.look(ended || full)
		if (ended || full) && !w.log && isLogged(w.line) {
			w.log, w.before = true, guests(string(w.line))
		}
		switch {
		case ended:
			w.spoke(feeds)
			w.line, w.log = w.line[:0], false
		case full: // the searched text may begin at its end
			w.line = append(w.line[:0], w.line[maxLine/2:]...)
		}
	}
	return len(p), nil
}

// look examines the unfinished line; whole means that no more of it is kept.
func (w *Watch) look(whole bool) {
	if bytes.Contains(w.line, []byte(ReadyLine)) {
		w.over = true
		close(w.ready)
		return
	}
	if !whole { // so that the whole reason is reported
		return
	}
	if _, what, ok := bytes.Cut(w.line, []byte(failedLine)); ok {
		w.fail("the guest's agent does not start: " + clip(string(what)))
	} else if _, what, ok := bytes.Cut(w.line, []byte(panicText)); ok {
		w.fail(panicked(string(what)))
	}
}

// spoke records a finished line. A line of the machine's log is not the guest's. A line that ends
// with a line feed (feeds) is final, and is counted.
func (w *Watch) spoke(feeds bool) {
	said := string(w.line)
	if w.log {
		said = w.before
	}
	said = clip(said)
	w.mu.Lock()
	defer w.mu.Unlock()
	if feeds && !w.log {
		w.lines++
	}
	if said != "" {
		w.spoken = said
	}
}

func (w *Watch) fail(why string) {
	w.over, w.why = true, why
	close(w.failed)
}

// A Tail keeps the last bytes written to it. It is safe for concurrent use.
type Tail struct {
	Limit int // bytes that are kept
	mu    sync.Mutex
	buf   []byte
	cut   bool // bytes before buf were dropped
}

// Write implements io.Writer. It does not fail.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = t.cut || len(t.buf)+len(p) > t.Limit
	t.buf = append(t.buf, p[max(0, len(p)-t.Limit):]...)
	if over := len(t.buf) - t.Limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String returns the kept bytes.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// Lines returns how many lines the guest itself has ended.
func (w *Watch) Lines() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines
}

// LastLine returns the last line of s that is not empty.
func LastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexAny(s, "\r\n")+1:]
}

// Printable removes terminal control from a hostile guest's text: line ends and tabs become spaces,
// and other characters that are not printable ASCII become question marks.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case r < 0x20 || r > 0x7e:
			return '?'
		}
		return r
	}, s)
}

const maxText = 300

func clip(s string) string { return Clip(s, maxText) }

// Clip returns at most n bytes of s without surrounding spaces, after Printable.
func Clip(s string, n int) string {
	s = strings.TrimSpace(Printable(s))
	return s[:min(len(s), n)]
}
