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

// initPrefix begins the names of the processes of init containers: the container's number and the attempt's follow.
const initPrefix = "init-"

// leastGrace is what a process has after TERM, if its hook has used up the time.
const leastGrace = 2 * time.Second

// initialize runs the init containers that have not succeeded yet, one after another. inits are those
// with all values; nil: those of the object. It reports over if one has failed for good.
func (s *session) initialize(ctx context.Context, inits []agents.Init) (over bool, err error) {
	if inits == nil {
		inits = s.Main.Inits
	}
	for n := range inits {
		if over, err = s.succeed(ctx, n+1, &inits[n]); over || err != nil {
			return over, err
		}
	}
	return false, nil
}

// succeed runs an init container until it has succeeded: again and again, unless its object says never.
func (s *session) succeed(ctx context.Context, number int, i *agents.Init) (over bool, err error) {
	tell := func(reason, text string) {
		s.state(agents.Process{Reason: reason, Message: cut("the init container " + i.Name + " " + text)})
	}
	attempt, exit, err := s.lastInit(ctx, number)
	if err != nil {
		return false, err
	}
	var back backoff
	for {
		if attempt > 0 && exit == nil {
			tell("PodInitializing", "runs")
			r, err := s.w.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: initID(number, attempt)})
			if err != nil {
				return false, err
			}
			exit = &r.Exit
		}
		var text string
		switch {
		case attempt > 0 && exit.ExitCode == 0 && exit.Signal == "":
			return false, nil
		case attempt > 0:
			text = exitText(exit) + s.lastWords(ctx, initID(number, attempt), true)
			if s.Main.Again == agents.Never {
				s.state(agents.Process{Ended: true, Failed: true, Message: cut("the init container " + i.Name + " " + text)})
				return true, nil
			}
			wait := back.delay(s.clock)
			back++
			if wait > 0 {
				tell("CrashLoopBackOff", fmt.Sprintf("starts again at %s: it %s", time.Now().Add(wait).UTC().Format(time.RFC3339), text))
			}
			if !sleep(ctx, s.w.Done(), wait) {
				return false, dead(s.w)
			}
		}
		attempt, exit = attempt+1, nil
		if err := s.startInit(ctx, initID(number, attempt), i); turnstone.KindOf(err) == turnstone.KindNotFound {
			exit = &wire.ProcessExit{ExitCode: 127} // the image lacks the program
		} else if err != nil {
			return false, err
		}
	}
}

func initID(number, attempt int) string { return fmt.Sprint(initPrefix, number, "-", attempt) }

// lastInit returns the last attempt of an init container, 0 for none, and how it has ended; nil: it runs.
func (s *session) lastInit(ctx context.Context, number int) (attempt int, exit *wire.ProcessExit, err error) {
	all, err := s.list(ctx)
	if err != nil {
		return 0, nil, err
	}
	for n := range all {
		text, ok := strings.CutPrefix(all[n].ProcessID, initPrefix+strconv.Itoa(number)+"-")
		if i, err := strconv.Atoi(text); ok && err == nil && i > attempt {
			attempt, exit = i, all[n].Exit
		}
	}
	return attempt, exit, nil
}

func (s *session) startInit(ctx context.Context, id string, i *agents.Init) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	p := &wire.ProcessStartParams{ProcessID: id, Argv: i.Argv, Image: i.Image, Cwd: i.Cwd, User: i.User, Env: i.Env,
		Secrets: i.Secrets, Detach: true}
	_, err := s.w.ProcessStart(ctx, p)
	if turnstone.KindOf(err) == turnstone.KindInvalid {
		if all, lerr := s.list(ctx); lerr == nil {
			for n := range all {
				if all[n].ProcessID == id { // another operator has started it meanwhile
					return nil
				}
			}
		}
	}
	return err
}

// hook runs a hook to its end, and returns why it has failed.
func (s *session) hook(ctx context.Context, h *agents.Hook) (why string) {
	switch {
	case len(h.Exec) > 0:
		why, err := s.execute(ctx, h.Exec)
		if err != nil {
			return words(err.Error())
		}
		return why
	case h.HTTP != nil:
		return s.get(ctx, h.HTTP)
	}
	sleep(ctx, s.w.Done(), h.Sleep)
	return ""
}

// stop ends the container's process, or that of the init container that runs, and waits for its end.
func (s *session) stop(ctx context.Context) error {
	id, hook := s.process(), s.Main.PreStop
	switch {
	case s.number == 0:
		var err error
		if id, err = s.runningInit(ctx); id == "" || err != nil {
			return err
		}
		hook = nil // it is the container's
	case s.ended != nil && s.ended.number == s.number:
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.kill(ctx, id, hook)
	_, err := s.w.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: id})
	return err
}

// runningInit returns the process of the init container that runs; empty: none does.
func (s *session) runningInit(ctx context.Context) (id string, err error) {
	all, err := s.list(ctx)
	for n := range all {
		if strings.HasPrefix(all[n].ProcessID, initPrefix) && all[n].Exit == nil {
			id = all[n].ProcessID
		}
	}
	return id, err
}
