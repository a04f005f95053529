package container

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/wire"
)

// A verdict is what a probe has found out.
type verdict struct {
	of   *agents.Probe // nil: the hook at the start has ended
	good bool
	why  string // it is not
}

// watch follows a process that runs until it ends, and tells whether it is ready. The error is about the
// connection. fresh says that the process has just been started.
func (s *session) watch(ctx context.Context, fresh bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	exit, failed := make(chan wire.ProcessExit, 1), make(chan error, 1)
	if !s.nothing {
		go func() {
			r, err := s.w.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: s.process()})
			if err != nil {
				failed <- err
				return
			}
			exit <- r.Exit
		}()
	}
	p := s.probing(ctx, fresh)
	if fresh || !p.waits() {
		s.state(p.process())
	}
	for {
		select {
		case x := <-exit:
			cancel()
			s.end(context.WithoutCancel(ctx), x, time.Now())
			return nil
		case err := <-failed:
			return err
		case <-s.w.Done():
			return dead(s.w)
		case v := <-p.verdicts:
			if p.hear(v) {
				s.state(p.process())
			}
			if p.kill != "" && !p.killed {
				p.killed = true
				go s.kill(ctx, s.process(), s.Main.PreStop)
			}
		case err := <-p.broken:
			return err
		}
	}
}

// process returns the name of the process that was started last.
func (f *follower) process() string { return processPrefix + strconv.Itoa(f.number) }

// kill ends a process as a kubelet does: by its hook, if it has one, and TERM, and later by KILL.
func (s *session) kill(ctx context.Context, id string, hook *agents.Hook) {
	end := time.Now().Add(s.Main.Grace)
	if hook != nil {
		bounded, cancel := context.WithDeadline(ctx, end)
		_ = s.hook(bounded, hook) // a failed hook does not stop the end
		cancel()
	}
	_ = s.w.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: id, Signal: "TERM"})
	if sleep(ctx, s.w.Done(), max(time.Until(end), leastGrace)) {
		_ = s.w.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: id, Signal: "KILL"})
	}
}

// A prober has the probes of a process.
type prober struct {
	s        *session
	ctx      context.Context
	verdicts chan verdict
	broken   chan error

	hook           bool // that of the start has not ended
	started, ready bool
	heard          bool // the first answer about readiness
	why            string
	kill           string // why the process is ended
	killed         bool
}

// probing begins with the probes: first whether the process has started, then the others.
func (s *session) probing(ctx context.Context, fresh bool) *prober {
	m := &s.Main
	p := &prober{s: s, ctx: ctx, verdicts: make(chan verdict), broken: make(chan error, 3),
		started: m.Startup == nil, ready: m.Readiness == nil, why: "it has not answered its readinessProbe yet"}
	p.heard = m.Readiness == nil
	if p.hook = fresh && m.PostStart != nil && !s.nothing; p.hook {
		go p.postStart()
	} else {
		p.first(fresh)
	}
	return p
}

// first begins with the first probes.
func (p *prober) first(fresh bool) {
	m := &p.s.Main
	if p.started {
		p.begin(m.Readiness, fresh)
		p.begin(m.Liveness, fresh)
		return
	}
	p.why = "it has not answered its startupProbe yet"
	p.begin(m.Startup, fresh)
}

// postStart runs the hook of the start.
func (p *prober) postStart() {
	why := p.s.hook(p.ctx, p.s.Main.PostStart)
	select {
	case p.verdicts <- verdict{nil, why == "", why}:
	case <-p.ctx.Done():
	}
}

// waits reports whether a process that runs already was not heard of: an answer is awaited before it is
// told that it is not ready, because it may have been ready all the time.
func (p *prober) waits() bool { return p.started && !p.heard }

// begin begins to ask.
func (p *prober) begin(q *agents.Probe, fresh bool) {
	if q != nil {
		go p.ask(q, fresh)
	}
}

// ask asks again and again. The first good answers, and bad ones, count as the probe says.
func (p *prober) ask(q *agents.Probe, fresh bool) {
	if fresh && !sleep(p.ctx, p.s.w.Done(), q.Delay) {
		return
	}
	good, bad, said := 0, 0, false
	for {
		why, err := p.s.probe(p.ctx, q)
		if err != nil {
			p.broken <- err
			return
		}
		if why == "" {
			good, bad = good+1, 0
		} else {
			good, bad = 0, bad+1
		}
		// What runs already has said nothing yet: its first bad answer counts, too.
		if good == q.Success || bad == q.Failure || !said && !fresh && bad > 0 && q == p.s.Main.Readiness {
			said = true
			select {
			case p.verdicts <- verdict{q, why == "", why}:
			case <-p.ctx.Done():
				return
			}
			if q == p.s.Main.Startup || q == p.s.Main.Liveness && why != "" {
				return
			}
		}
		if !sleep(p.ctx, p.s.w.Done(), q.Period) {
			return
		}
	}
}

// hear notes an answer, and reports whether it changes anything.
func (p *prober) hear(v verdict) bool {
	m := &p.s.Main
	switch {
	case v.of == nil && v.good:
		p.hook = false
		p.first(true)
	case v.of == nil:
		p.kill = "its postStart hook has failed: " + v.why
	case v.of == m.Startup && v.good:
		p.started, p.why = true, "it has not answered its readinessProbe yet"
		p.begin(m.Readiness, true)
		p.begin(m.Liveness, true)
		return true
	case v.of == m.Startup:
		p.kill = "its startupProbe fails: " + v.why
	case v.of == m.Liveness && !v.good:
		p.kill = "its livenessProbe fails: " + v.why
	case v.of == m.Readiness:
		changed := !p.heard || p.ready != v.good
		p.heard, p.ready = true, v.good
		p.why = "its readinessProbe fails: " + v.why
		return changed
	default:
		return false
	}
	return true
}

// process returns what is told of a process that runs.
func (p *prober) process() agents.Process {
	switch {
	case p.kill != "":
		return agents.Process{Reason: "Unhealthy", Message: cut(fmt.Sprintf("it is ended, because %s", p.kill))}
	case p.hook:
		return agents.Process{Message: "its postStart hook runs"}
	case p.started && p.ready:
		return agents.Process{Ready: true}
	}
	return agents.Process{Message: cut(p.why)}
}
