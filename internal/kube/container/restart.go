package container

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/wire"
)

// usualClock returns the times of a kubelet: the first restart follows at once, the next ones after 10 s
// that double to 5 min, and a process that has run for 10 min begins anew.
func usualClock() clock {
	return clock{first: 10 * time.Second, longest: 5 * time.Minute, reset: 10 * time.Minute}
}

// A backoff counts restarts that follow each other.
type backoff int

// delay returns the time to the next restart.
func (b backoff) delay(c clock) time.Duration {
	if b == 0 {
		return 0
	}
	d := c.first
	for range min(int(b)-1, 32) {
		d = min(2*d, c.longest)
	}
	return d
}

// A session is a follower with a connection.
type session struct {
	*follower
	w *wire.Client
}

// keptEnded is how many processes that have ended a sandbox remembers.
const keptEnded = 64

// find finds the process that was started last, if there is one.
func (s *session) find(ctx context.Context) error {
	all, err := s.list(ctx)
	if err != nil {
		return err
	}
	number, last, back, ended := s.read(all)
	switch {
	case number < s.number || last == nil && s.number > 0:
		s.forgotten() // by the sandbox, and not by this follower
	case last == nil && s.Main.Was.Ended && ended >= keptEnded:
		s.number, s.ended = 1, &ending{number: 1, failed: s.Main.Was.Failed, text: "has ended"}
	case last == nil:
	default:
		if s.number != number {
			s.number, s.back, s.due = number, back, time.Time{}
		}
		if last.Exit != nil && (s.ended == nil || s.ended.number != number) {
			s.end(ctx, *last.Exit, endOf(last))
		}
	}
	return nil
}

// forgotten is for a sandbox that has no process of a number that was used.
func (s *session) forgotten() {
	if s.ended == nil || s.ended.number != s.number {
		s.ended = &ending{number: s.number, failed: true, text: "is no longer known to its sandbox"}
		s.due = time.Now().Add(s.back.delay(s.clock))
		s.back++
	}
}

// read returns the last of the processes that an object asked for, how often they were started soon after
// each other, and how many processes of the sandbox have ended.
func (s *session) read(all []wire.ProcessProcessInfo) (number int, last *wire.ProcessProcessInfo, back backoff, ended int) {
	short := map[int]bool{}
	for n := range all {
		p := &all[n]
		if p.Exit != nil {
			ended++
		}
		text, ok := strings.CutPrefix(p.ProcessID, processPrefix)
		i, err := strconv.Atoi(text)
		if !ok || err != nil || i < 1 {
			continue
		}
		short[i] = p.Exit != nil && time.Duration(p.Exit.Duration) < s.clock.reset
		if i > number {
			number, last = i, p
		}
	}
	for i := number - 1; short[i]; i-- {
		back++
	}
	return number, last, back, ended
}

// endOf returns when a process has ended, as the sandbox says.
func endOf(p *wire.ProcessProcessInfo) time.Time {
	at, err := time.Parse(time.RFC3339Nano, p.Started)
	if err != nil {
		return time.Now()
	}
	return at.Add(time.Duration(p.Exit.Duration))
}

func (s *session) list(ctx context.Context) ([]wire.ProcessProcessInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	all, err := s.w.ProcessList(ctx)
	if err != nil {
		return nil, err
	}
	return all.Processes, nil
}

// end notes how a process has ended, and when the next one starts. at is when, by the sandbox's clock if
// the follower has not seen it.
func (s *session) end(ctx context.Context, x wire.ProcessExit, at time.Time) {
	ran := time.Duration(x.Duration)
	if !s.began.IsZero() {
		ran, at = time.Since(s.began), time.Now()
	}
	e := &ending{number: s.number, failed: x.ExitCode != 0 || x.Signal != "", text: exitText(&x)}
	e.text += s.lastWords(ctx, s.process(), e.failed)
	s.ended, s.began = e, time.Time{}
	s.next(ran, at)
}

// next sets when the next process starts, after one that has run for a time until at.
func (s *session) next(ran time.Duration, at time.Time) {
	if ran >= s.clock.reset {
		s.back = 0
	}
	delay := s.back.delay(s.clock)
	now := time.Now()
	if s.due = at.Add(delay); s.due.After(now.Add(delay)) {
		s.due = now.Add(delay) // the sandbox's clock is its own
	}
	s.back++
}

func exitText(x *wire.ProcessExit) string {
	switch {
	case x.OOMKilled:
		return "was ended for want of memory (OOMKilled)"
	case x.Signal != "":
		return fmt.Sprintf("was ended by the signal %.20q", x.Signal)
	case x.ExitCode == 0:
		return "has ended (Completed)"
	}
	return fmt.Sprintf("has ended with the status %d", x.ExitCode)
}

// after tells what follows the end of a process, and reports whether nothing does.
func (s *session) after() (over bool) {
	e, m := s.ended, &s.Main
	text := "the process " + e.text
	if m.Again == agents.Never || m.Again == agents.OnFailure && !e.failed {
		s.state(agents.Process{Ended: true, Failed: e.failed, Message: cut(text)})
		return true
	}
	if left := time.Until(s.due); left > 0 {
		s.state(agents.Process{Reason: "CrashLoopBackOff", Message: cut(fmt.Sprintf(
			"it starts again at %s, after %d restarts: %s", s.due.UTC().Format(time.RFC3339), max(s.number-1, 0), text))})
	}
	return false
}

// start starts the next process, after the init containers if it is the first. It reports over if one of
// them has failed for good. A program that the image lacks counts as an end of the process.
func (s *session) start(ctx context.Context) (over bool, err error) {
	in, err := s.inputs(ctx)
	if err != nil {
		return false, err
	}
	if s.number == 0 {
		if err := s.prepare(ctx); err != nil {
			return false, err
		}
		if over, err := s.initialize(ctx, in.Inits); over || err != nil {
			return over, err
		}
	}
	if len(s.Main.Argv) == 0 && !s.Main.Image {
		s.nothing = true
		return false, nil
	}
	return false, s.startMain(ctx, in)
}

// startMain starts the next process of the container itself.
func (s *session) startMain(ctx context.Context, in agents.Inputs) error {
	p := &wire.ProcessStartParams{ProcessID: processPrefix + strconv.Itoa(s.number+1), Argv: s.Main.Argv,
		Image: s.Main.Image, Cwd: s.Main.Cwd, User: s.Main.User, Detach: true}
	if in.Argv != nil {
		p.Argv = in.Argv
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err := s.w.ProcessStart(ctx, p)
	switch kind := turnstone.KindOf(err); {
	case kind == turnstone.KindInvalid && s.another(ctx):
		return nil
	case kind == turnstone.KindNotFound:
		s.number++
		s.ended = &ending{number: s.number, failed: true, text: "cannot start: " + err.Error()}
		s.next(0, time.Now())
		return nil
	case err != nil:
		return err
	}
	s.number++
	s.began = time.Now()
	return nil
}

// another reports whether another operator has started the next process meanwhile.
func (s *session) another(ctx context.Context) bool {
	all, err := s.list(ctx)
	if err != nil {
		return false
	}
	number, _, _, _ := s.read(all)
	if number <= s.number {
		return false
	}
	s.number, s.began = number, time.Now()
	return true
}
