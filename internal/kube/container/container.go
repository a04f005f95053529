// Package container does for a sandbox what a kubelet does for a container: it starts the process, starts
// it again with back-off, probes it, and tells what becomes of it. All that has to outlive an operator is in
// the names of the sandbox's processes.
//
// What a sandbox answers is untrusted: each wait is bounded, and what is told is cut.
package container

import (
	"context"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/wire"
)

// processPrefix begins the names of the processes of a sandbox that its object asks for: their number
// follows. A name is used once, so a process is never started twice.
const processPrefix = "main-"

// Bounds.
const (
	// callTime bounds an answer of the sandbox's agent.
	callTime = time.Minute
	// The time between two connections doubles, as long as they end soon.
	minRetry, maxRetry = time.Second, 30 * time.Second
	goodTime           = time.Minute
	// awayTime is how long a sandbox may not answer before that is told.
	awayTime = 2 * time.Minute
)

// Options say which container is followed.
type Options struct {
	// Open opens a channel to the sandbox.
	Open func(ctx context.Context) (io.ReadWriteCloser, error)
	Main agents.Main
	// Loopback lets probes reach servers that listen at the loopback only.
	Loopback bool
	// Tell is called with what is known, in order, when it has changed.
	Tell func(agents.Process)
}

// A follower follows one container, through several connections.
type follower struct {
	Options
	clock clock

	now     agents.Process
	told    bool
	nothing bool      // there is nothing to start
	number  int       // of the process that was started last
	began   time.Time // when this follower saw it run first; zero: never
	back    backoff
	due     time.Time // when the next process starts; zero: not known
	ended   *ending   // the end of the process with that number
}

// An ending is how a process ended.
type ending struct {
	number int
	text   string
	failed bool
}

// A clock has the times of restarts.
type clock struct {
	first, longest, reset time.Duration
}

// Follow implements agents.Server for one sandbox.
func Follow(ctx context.Context, o Options) error { return follow(ctx, o, usualClock()) }

func follow(ctx context.Context, o Options, c clock) error {
	f := &follower{Options: o, clock: c}
	wait, heard := minRetry, time.Now()
	for {
		began := time.Now()
		over, err := f.once(ctx)
		if over || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !f.told {
			return err
		}
		if time.Since(began) > goodTime {
			wait, heard = minRetry, time.Now()
		}
		p := f.now
		p.Lost++
		if time.Since(heard) > awayTime && err != nil {
			p.Ready, p.Reason, p.Message = false, agents.ReasonError, cut("the sandbox does not answer: "+err.Error())
		}
		f.tell(p)
		if !sleep(ctx, nil, wait) {
			return context.Cause(ctx)
		}
		wait = min(2*wait, maxRetry)
	}
}

// tell tells what is known, if it has changed.
func (f *follower) tell(p agents.Process) {
	if f.told && p == f.now {
		return
	}
	f.told, f.now = true, p
	f.Tell(p)
}

// state tells what is known, with what counts all connections.
func (f *follower) state(p agents.Process) {
	p.Lost, p.Restarts = f.now.Lost, max(f.number-1, 0)
	f.tell(p)
}

// sleep reports whether a time has passed before ctx or what done is of has ended.
func sleep(ctx context.Context, done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-done:
	}
	return false
}

// once follows the container through one connection. over says that it has ended for good.
func (f *follower) once(ctx context.Context) (over bool, err error) {
	opened, cancel := context.WithTimeout(ctx, callTime)
	stream, err := f.Open(opened)
	cancel()
	if err != nil {
		return false, err
	}
	w := wire.NewClient(stream)
	defer func() { _ = w.Close() }()
	defer context.AfterFunc(ctx, func() { _ = w.Close() })()
	s := &session{follower: f, w: w}
	fresh := false
	for err = s.find(ctx); err == nil; {
		switch {
		case s.Main.Stop:
			return true, s.stop(ctx)
		case f.number == 0 && !f.nothing:
			fresh = true
			over, err = s.start(ctx)
		case f.ended == nil || f.ended.number != f.number:
			err = s.watch(ctx, fresh)
		case s.after():
			return true, nil
		case !sleep(ctx, w.Done(), time.Until(f.due)):
			return false, dead(w)
		default:
			fresh = true
			over, err = s.start(ctx)
		}
		if over {
			return true, nil
		}
	}
	return f.refused(err), err
}

// refused tells of an error that no repetition helps with, such as a user that the image does not have.
func (f *follower) refused(err error) bool {
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		return false
	}
	f.state(agents.Process{Reason: agents.ReasonInvalid, Message: cut(text(err))})
	return true
}

// text returns an error with what helps.
func text(err error) string {
	if hint := turnstone.HintOf(err); hint != "" {
		return err.Error() + " (" + hint + ")"
	}
	return err.Error()
}

func dead(w *wire.Client) error {
	if err := w.Err(); err != nil {
		return err
	}
	return turnstone.Errorf("kube.follow", turnstone.KindDead, "the sandbox", "has ended the connection")
}

// maxText bounds what is told of a sandbox, in bytes.
const maxText = 900

// cut bounds a text, and keeps its lines and its printable characters.
func cut(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	return s
}
