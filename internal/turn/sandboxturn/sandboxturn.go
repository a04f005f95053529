// Package sandboxturn starts sandboxes that belong to sessions, and keeps what was done in them as
// turns.
package sandboxturn

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/turn"
	"turnstone.dev/turnstone/internal/turn/transcript"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/sandboxes/performed"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// Open creates the machine of a sandbox for its holder. A sandbox of a session starts on the head of
// its branch, and its machine is a sandboxes.Committer.
func Open(ctx context.Context, h *host.Host, r *turn.Runner, id turnstone.SandboxID,
	spec sandboxes.Spec, progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
	if spec.Session == "" && spec.Belongs == nil && !spec.Sealed {
		return provision.OpenMachine(ctx, h, id, spec, progress)
	}
	var none sandboxes.Details
	on, err := startOf(ctx, h, &spec)
	if err != nil {
		return nil, none, err
	}
	spec.Live = true
	opened, d, err := provision.OpenMachine(ctx, h, id, spec, progress)
	if err != nil {
		return nil, none, err
	}
	s, ok := opened.(*sandbox.Sandbox)
	if !ok {
		_ = opened.Close()
		return nil, none, turnstone.Errorf("sandbox.create", turnstone.KindInternal, string(id),
			"its machine is a %T", opened)
	}
	m := &machine{Sandbox: s, host: h, runner: r, sealed: spec.Sealed}
	if spec.Session == "" && spec.Belongs == nil {
		return m, d, nil
	}
	d.Room, d.Image = h.Room, cmp.Or(spec.Image, plan.DefaultImage)
	d.Workdir = cmp.Or(spec.Cwd, on.cwd, d.Workdir)
	if spec.Session == "" {
		return m, d, nil
	}
	if on.place.ID == "" { // only now, so that a failure leaves no session
		if err := on.make(ctx, h, spec.Session); err != nil {
			_ = m.Close()
			return nil, none, err
		}
	}
	d.Session = &on.place
	if m.sealed = on.sealed; m.sealed {
		d.Records, m.forget, err = repo.MemoryFolder(h.Dir, repo.MemoryOfSandboxes, string(id))
		if err != nil {
			_ = m.Close()
			return nil, none, err
		}
	}
	return m, d, nil
}

// A start is what a session's sandbox starts on.
type start struct {
	place  sandboxes.SessionInfo // without an ID: the session is new
	cwd    string
	sealed bool
}

// startOf finds the head that spec names, and completes spec.
func startOf(ctx context.Context, h *host.Host, spec *sandboxes.Spec) (start, error) {
	s := start{place: sandboxes.SessionInfo{Branch: cmp.Or(spec.Branch, plan.DefaultBranch)}}
	if spec.Session == "" {
		return s, nil
	}
	cs, err := h.Context(ctx)
	if err != nil {
		return s, err
	}
	found, err := cs.DB.Find(ctx, spec.Session)
	if turnstone.KindOf(err) == turnstone.KindNotFound && s.place.Branch == plan.DefaultBranch {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.sealed = found.Domain != ""
	if cs, err = cs.In(ctx, found.Domain); err != nil {
		return s, err
	}
	s.place.ID, s.place.Name = found.ID, found.Label()
	b, err := cs.DB.Branch(ctx, found.ID, s.place.Branch)
	if err != nil || b.Head == "" {
		return s, err
	}
	head, err := cs.Turn(ctx, b.Head)
	if err != nil {
		return s, err
	}
	base, err := provision.On(ctx, cs, &head)
	if err != nil {
		return s, err
	}
	if spec.Image != "" && !template.SameImage(spec.Image, base.State.Image) {
		return s, turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "image "+spec.Image,
			"session %s is on %s", s.place.Name, base.State.Image).
			WithHint("leave the image out, or begin another session")
	}
	s.place.Begun, s.place.Turn, s.place.Number = head.ID, head.ID, head.Number
	s.cwd, spec.Image, spec.On = base.State.Cwd, base.State.Image, string(head.ID)
	spec.Env = slices.Concat(base.State.Env, spec.Env) // as steps of a turn have it
	return s, nil
}

// make makes the session called name.
func (s *start) make(ctx context.Context, h *host.Host, name string) error {
	cs, err := h.Context(ctx)
	if err != nil {
		return err
	}
	made, err := cs.DB.Ensure(ctx, name)
	s.place.ID, s.place.Name, s.sealed = made.ID, made.Label(), made.Domain != ""
	return err
}

// A machine is the machine of a sandbox that belongs to a session or has data of a sealed one.
type machine struct {
	*sandbox.Sandbox
	host   *host.Host
	runner *turn.Runner
	sealed bool   // it has data of a sealed session
	forget func() // removes the folder of its commands in memory; nil: they are not there

	mu      sync.Mutex
	session *wire.StateGetSessionResult // of the shell, when the machine was paused
}

// Pause implements sandboxes.Controlled.
func (m *machine) Pause(ctx context.Context) (upper string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Paused() {
		return m.Sandbox.Pause(ctx)
	}
	res, err := m.Client().StateGetSession(ctx)
	if err != nil {
		return "", m.CauseOf(err)
	}
	m.session = res
	return m.Sandbox.Pause(ctx)
}

// Snapshot implements sandboxes.Controlled.
func (m *machine) Snapshot(ctx context.Context, dir string) error {
	if m.sealed {
		return m.notSealed("sandbox.snapshot")
	}
	return m.Sandbox.Snapshot(ctx, dir)
}

// Keep implements sandboxes.Controlled.
func (m *machine) Keep(ctx context.Context, dir string) (substrate.Packed, error) {
	if m.sealed {
		return substrate.Packed{}, m.notSealed("sandbox.keep")
	}
	return m.Sandbox.Keep(ctx, dir)
}

// notSealed returns the error of an operation that would write the machine's memory to disk.
func (m *machine) notSealed(op turnstone.Op) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, "sandbox "+string(m.ID()),
		"it has data of a sealed session, and a copy of its memory would not be sealed").
		WithHint("create another sandbox of the session: see docs/keys.md")
}

// Close implements sandboxes.Machine.
func (m *machine) Close() error {
	err := m.Sandbox.Close()
	if m.forget != nil {
		m.forget()
	}
	return err
}

// changes returns the changes of the paused machine.
func (m *machine) changes(ctx context.Context, s *sandbox.Sandbox, b collect.Bounds) (
	c *collect.Changes, unpaused, err error) {
	ctx, cancel := context.WithTimeout(ctx, collect.TimeLimit)
	defer cancel()
	upper, err := m.Pause(ctx)
	if err != nil {
		return nil, nil, err
	}
	d, err := m.Disk()
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	cwd, env := m.session.Cwd, m.session.Env
	m.mu.Unlock()
	c, err = collect.OfPaused(ctx, s, d, upper, cwd, env, b)
	return c, nil, err
}

// Commit implements sandboxes.Committer.
func (m *machine) Commit(ctx context.Context, w sandboxes.Work) (*turnstone.TurnReport,
	sandboxes.SessionInfo, error) {
	now := w.Session
	req, steps, err := m.request(&w)
	if err != nil {
		return nil, now, err
	}
	base, err := m.base(ctx, w.Session.Begun)
	if err != nil {
		return nil, now, err
	}
	done := &turn.Done{On: w.Session.Turn, Since: w.Since, Sandbox: m.Sandbox, Base: base,
		Pause: m.changes, Last: w.Last, Start: "the template"}
	if w.Session.Number > 0 {
		done.Start = fmt.Sprintf("turn %d", w.Session.Number)
	}
	done.Start += ", in sandbox " + string(w.Sandbox.ID)
	for i := range steps {
		done.Steps = append(done.Steps, result(&steps[i]))
	}
	rep, err := m.runner.Keep(ctx, *req, done, nil)
	if rep == nil || err != nil {
		return rep, now, err
	}
	if rep.State == "" {
		return rep, now, turnstone.Errorf("sandbox.commit", rep.Kind, "sandbox "+w.Sandbox.Title(),
			"turn %d has no state: %s", rep.Number, rep.Error).WithHint(rep.Hint)
	}
	now.Branch, now.Turn, now.Number = rep.Branch, rep.ID, rep.Number
	return rep, now, nil
}

// base returns the tree below the sandbox's disk: that of the turn begun, or zero for the template's.
func (m *machine) base(ctx context.Context, begun turnstone.TurnID) (t turnstone.TreeRef, err error) {
	if begun == "" {
		return t, nil
	}
	cs, err := m.host.Context(ctx)
	if err != nil {
		return t, err
	}
	on, err := cs.Turn(ctx, begun)
	if err != nil {
		return t, err
	}
	b, err := provision.On(ctx, cs, &on) // the session may be sealed
	if err != nil {
		return t, err
	}
	return b.State.Tree, nil
}

// request returns the request of the turn, and the commands that are its document's steps.
func (m *machine) request(w *sandboxes.Work) (*plan.Request, []transcript.Step, error) {
	o := transcript.Options{Title: "Sandbox " + w.Sandbox.Title(), User: w.Sandbox.User,
		Unlisted: w.Unlisted, Missing: w.Missing}
	req := &plan.Request{Env: w.Env, Secrets: unique(w.Secrets), Session: string(w.Session.ID),
		Branch: w.Session.Branch, Network: &w.Sandbox.Shape.Network}
	if w.Session.Turn == "" {
		req.Image, o.Image = w.Sandbox.Image, w.Sandbox.Image
	}
	if n := w.Sandbox.Network; n != nil && w.Sandbox.Shape.Network {
		req.NetworkRules = &document.NetworkRules{Allow: n.Allow, Deny: n.Deny, HasAllow: n.Only}
	}
	text, steps := transcript.Write(w.Commands, o)
	var err error
	if req.Document, err = document.Parse(string(w.Sandbox.ID)+".md", text); err != nil {
		return nil, nil, turnstone.NewError("sandbox.commit", turnstone.KindInternal,
			"the document of its commands", err)
	}
	return req, steps, nil
}

// unique gives each of several secrets of the same name another name: all values are masked.
func unique(pairs []string) (all []string) {
	seen := make(map[string]int)
	for _, kv := range pairs {
		name, value := kv, ""
		for i := range len(kv) {
			if kv[i] == '=' {
				name, value = kv[:i], kv[i+1:]
				break
			}
		}
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s_%d", name, seen[name])
		}
		all = append(all, name+"="+value)
	}
	return all
}

// result returns the result of a command's step.
func result(s *transcript.Step) turn.DoneStep {
	d := turn.DoneStep{Began: s.Started, Took: s.Took, Exit: s.Exit, Stdout: output(s.Stdout),
		Stderr: output(s.Stderr)}
	switch {
	case s.Background:
		d.Exit = &wire.ProcessExit{} // of the step, which only starts the command
		d.Note = "in the background"
		switch {
		case !s.Ended:
			d.Note += "; it still ran when the turn was kept"
		case s.Exit == nil:
			d.Note += "; its end is unknown"
		default:
			d.Note += fmt.Sprintf("; it ended with exit status %d after %s", s.Exit.ExitCode,
				s.Took.Round(time.Millisecond))
		}
	case s.Timeout:
		d.Killed, d.Note = true, fmt.Sprintf("killed by its client after %s",
			s.Took.Round(time.Millisecond))
	case s.Exit == nil && s.Ended:
		d.Note = "its end is unknown, because the sandbox's agent was not reachable then"
	case s.Exit == nil:
		d.Note = "it still ran when the turn was kept"
	}
	return d
}

// output returns an output of a step.
func output(o performed.Output) turn.DoneOutput {
	d := turn.DoneOutput{Path: o.Path}
	switch {
	case o.Lost > 0:
		d.Missing = fmt.Sprintf("of %d bytes, %d were not received", o.Size, o.Lost)
	case o.Kept < o.Size:
		d.Missing = fmt.Sprintf("of %d bytes only the first %d are kept", o.Size, o.Kept)
	}
	return d
}
