package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

// A Patience bounds the wait for a guest's agent. Idle and Work begin anew with each line on the
// console. They are measured by the machine's use of the host, so that a busy host or a slow disk
// does not reduce them.
type Patience struct {
	Idle  time.Duration // time in which the machine neither computes nor waits for the host
	Work  time.Duration // processor time
	Limit time.Duration // total time, however much the guest prints
}

// A Load is a machine's use of the host.
type Load struct {
	CPU  time.Duration // processor time since its start
	Busy bool          // it computes now, or waits for a processor or a disk
}

// The errors that end the wait for a guest.
var (
	ErrLate  = errors.New("that is too long")
	ErrHangs = errors.New("the guest hangs as it starts")
	ErrEnded = errors.New("the machine has ended")
)

// look is how often the load is measured.
const look = 100 * time.Millisecond

// quiet is the share of a processor below which a machine is idle, as 1/quiet.
const quiet = 10

// Await blocks until the agent is ready. Otherwise it returns a *GaveUp, ErrEnded once done is
// closed, ErrHangs, ErrLate or ctx's error, with the end of the console. If load fails, all time
// counts as computing.
func (w *Watch) Await(ctx context.Context, p Patience, load func() (Load, error),
	done <-chan struct{}) error {
	began := time.Now()
	tick := time.NewTicker(look)
	defer tick.Stop()
	var h hanging
	for {
		select {
		case <-w.Ready():
			return nil
		case <-w.Failed():
			return w.Fault()
		case <-done:
			return ErrEnded
		case <-ctx.Done():
			return w.Late(time.Since(began).Round(time.Millisecond), ctx.Err())
		case <-tick.C:
		}
		l, err := load()
		if err := h.look(p, w.Lines(), time.Now(), l, err == nil); err != nil {
			return w.end(err)
		}
		if time.Since(began) > p.Limit {
			return w.Late(p.Limit, ErrLate)
		}
	}
}

// A hanging adds up a guest's activity since its console's last line.
type hanging struct {
	lines int
	Stall
}

// look takes the current load, and returns an error when p's bounds are exceeded.
func (h *hanging) look(p Patience, lines int, now time.Time, l Load, known bool) error {
	h.Add(lines != h.lines, now, l, known)
	h.lines = lines
	switch {
	case h.Idle > p.Idle:
		return fmt.Errorf("%w: it has neither computed nor printed a line for %s", ErrHangs, p.Idle)
	case h.Work > p.Work:
		return fmt.Errorf("%w: it has computed for %s and printed no line", ErrHangs, p.Work)
	}
	return nil
}

// A Stall adds up what a machine has done since it last got further. The zero value is ready for use.
type Stall struct {
	Idle time.Duration // it neither computed nor waited for the host
	Work time.Duration // processor time; also time in which its load was not known

	at  time.Time
	cpu time.Duration
}

// Add takes the current load, unless it is not known, and whether the machine has got further since the
// last call.
func (s *Stall) Add(further bool, now time.Time, l Load, known bool) {
	passed, worked := now.Sub(s.at), l.CPU-s.cpu
	first := s.at.IsZero()
	s.at, s.cpu = now, l.CPU
	switch {
	case first || further:
		s.Idle, s.Work = 0, 0
	case !known:
		s.Work += passed
	case !l.Busy && worked*quiet < passed:
		s.Idle += passed
	default:
		s.Work += worked
	}
}

// firmwareEnd is the last output of QEMU's firmware (SeaBIOS).
const firmwareEnd = "Booting from ROM.."

// logged matches a line of Firecracker's log, which Firecracker writes between its guest's output,
// and after the guest's part of a line.
var logged = lazyregexp.New(
	`^(.*?)\d{4}-\d\d-\d\dT[\d:.]{8,20} \[sb-[^\]]{1,200}:(?:ERROR|WARN|INFO|DEBUG)[^\]]{0,200}\] `)

// isLogged reports whether a line of Firecracker's log begins in line.
func isLogged(line []byte) bool { // cheap test for most lines
	return bytes.Contains(line, []byte(" [sb-")) && logged.Match(line)
}

// guests returns the guest's part of line.
func guests(line string) string {
	if match := logged.FindStringSubmatch(line); match != nil {
		return match[1]
	}
	return line
}

// LastWords returns the last line that the guest itself has printed, made printable; empty: there
// is none.
func (w *Watch) LastWords() string {
	w.mu.Lock()
	text, cut, spoken := string(w.buf), w.cut, w.spoken
	w.mu.Unlock()
	if _, rest, found := strings.Cut(text, "\n"); cut && found {
		text = rest // the kept text begins within a line
	}
	if _, after, found := strings.Cut(text, firmwareEnd); found {
		text, cut = strings.TrimLeft(after, "."), false
	}
	for text = strings.TrimSpace(text); text != ""; {
		line := LastLine(text)
		text = strings.TrimSpace(strings.TrimSuffix(text, line))
		if line = clip(guests(line)); line != "" {
			return line
		}
	}
	if cut { // the log has displaced it
		return spoken
	}
	return ""
}

// end adds the end of the console to err.
func (w *Watch) end(err error) error {
	if last := w.LastWords(); last != "" {
		return fmt.Errorf("%w; the console ends: %q", err, last)
	}
	return fmt.Errorf("%w; the console is empty", err)
}

// Late returns the error of a guest that was not ready when the wait ended because of err.
func (w *Watch) Late(after time.Duration, err error) error {
	return w.end(fmt.Errorf("the guest did not start within %s: %w", after, err))
}
