package paused

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/metered"
	"turnstone.dev/turnstone/internal/repo/rootimage"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A Machine is the machine of a session's branch. A holder keeps the machine paused between turns,
// with its processes and its memory. A file describes the machine.
type Machine struct {
	Sandbox turnstone.SandboxID `json:"sandbox"`
	// Turn is the turn whose state the machine has. It is empty before the first turn has ended.
	Turn turnstone.TurnID  `json:"turn"`
	Base turnstone.TreeRef `json:"base,omitzero"` // the tree that the disk's changes apply to
	// Begun is the turn that left Base. A sealed session's file has it in place of Base, whose digests
	// tell what the files are.
	Begun turnstone.TurnID `json:"begun,omitempty"`
	// Rules identifies the host's network rules when the machine was created; empty: unknown.
	Rules turnstone.Digest `json:"rules,omitempty"`

	host   *host.Host
	sealed bool // the session
	path   string
	lock   *statedir.Lock // one turn at a time
	spent  bool           // the machine was ended to collect the turn's files
	store  *sandboxes.Store

	before turnstone.Used // what the machine had used when the turn began

	// guards the others: a watcher of the turn ends the machine from another goroutine
	mu    sync.Mutex
	ctl   *sandboxes.Control
	meter *metered.Meter // gets what the turn uses, once; then nil
}

// count adds to the turn's meter what the machine has used since the turn began, of all that it has
// used.
func (h *Machine) count(used turnstone.Used) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.meter.Add(turnstone.Used{CPU: used.CPU - h.before.CPU, Sent: used.Sent - h.before.Sent,
		Received: used.Received - h.before.Received})
	h.meter = nil
}

func (h *Machine) write() error {
	about := struct {
		Sandbox turnstone.SandboxID `json:"sandbox"`
		Turn    turnstone.TurnID    `json:"turn"`
		Base    turnstone.TreeRef   `json:"base,omitzero"`
		Begun   turnstone.TurnID    `json:"begun,omitempty"`
		Rules   turnstone.Digest    `json:"rules,omitempty"`
	}{h.Sandbox, h.Turn, h.Base, h.Begun, h.Rules}
	if h.sealed {
		about.Base = turnstone.TreeRef{}
	}
	b, err := json.Marshal(about)
	if err != nil {
		return err
	}
	return filestamp.WriteFile(h.path, b, 0o600)
}

// remove ends the machine and removes its file.
func (h *Machine) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	h.control(nil)
	if h.Sandbox != "" {
		_ = h.store.Remove(ctx, h.Sandbox)
	}
	_ = os.Remove(h.path)
	h.Sandbox, h.Turn, h.Base, h.Begun, h.Rules = "", "", turnstone.TreeRef{}, "", ""
	h.before = turnstone.Used{}
}

// control makes c the connection to the machine's holder, and closes the previous connection.
func (h *Machine) control(c *sandboxes.Control) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctl != nil {
		_ = h.ctl.Close()
	}
	h.ctl = c
}

// resume resumes the machine if it is paused, and connects to it.
func (h *Machine) resume(ctx context.Context) (*sandbox.Sandbox, error) {
	info, err := h.store.Get(h.Sandbox)
	if err != nil {
		return nil, err
	}
	if info.State.Final() {
		return nil, turnstone.Errorf("executor.held", turnstone.KindDead,
			"sandbox "+string(h.Sandbox),
			"is %s", info.State)
	}
	ctl, err := h.store.Control(ctx, h.Sandbox)
	if err != nil {
		return nil, err
	}
	h.control(ctl)
	if err := ctl.Resume(ctx); err != nil {
		return nil, err
	}
	conn, err := h.store.Dial(ctx, h.Sandbox)
	if err != nil {
		return nil, err
	}
	tmpl, err := h.host.Templates.Ensure(ctx, info.Image, func(string) {})
	if err != nil && info.Root != "" { // a resumed machine needs only its image
		tmpl, err = rootimage.Template(ctx, h.host.Repo, h.host.Templates, info.Image, info.Root)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	// the template was rebuilt in the meantime
	if info.Template != "" && info.Template != tmpl.Digest {
		was := *tmpl
		was.Digest, tmpl = info.Template, &was
	}
	m := &pausedSandbox{paused: h, id: h.Sandbox, done: make(chan struct{})}
	client := wire.NewClient(conn)
	go func() {
		<-client.Done()
		m.end()
	}()
	about := sandbox.About{Substrate: info.Substrate, Isolation: info.Isolation, Shape: info.Shape}
	return h.host.Launcher.Attach(tmpl, info.Image, m, about, client), nil
}

// A pausedSandbox is a holder's machine as a sandbox.Machine.
type pausedSandbox struct {
	paused *Machine
	id     turnstone.SandboxID
	once   sync.Once
	done   chan struct{}

	mu     sync.Mutex
	closed bool
}

func (m *pausedSandbox) end() { m.once.Do(func() { close(m.done) }) }

func (m *pausedSandbox) ID() turnstone.SandboxID { return m.id }
func (m *pausedSandbox) Done() <-chan struct{}   { return m.done }

// Err returns the reason why the machine ended, from the holder's records.
func (m *pausedSandbox) Err() error {
	select {
	case <-m.done:
	default:
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if info, err := m.paused.store.Get(m.id); err == nil && info.Reason != "" {
		return turnstone.NewError("executor.held", turnstone.KindDead, string(info.ID),
			errors.New(info.Reason))
	}
	return turnstone.Errorf("executor.held", turnstone.KindDead, string(m.id),
		"its connection ended")
}

// Close ends the machine. It is not called for a machine that remains.
func (m *pausedSandbox) Close() error {
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	if !closed {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m.paused.control(nil)
		_ = m.paused.store.Stop(ctx, m.id)
		if info, err := m.paused.store.Get(m.id); err == nil {
			m.paused.count(info.Used)
		}
	}
	m.end()
	return nil
}

// TakeNetwork is Sandbox.TakeNetwork through the machine's holder.
func (m *pausedSandbox) TakeNetwork(ctx context.Context) (turnstone.NetworkFacts, bool) {
	m.paused.mu.Lock()
	ctl := m.paused.ctl
	m.paused.mu.Unlock()
	select {
	case <-m.done:
		return turnstone.NetworkFacts{}, false
	default:
	}
	if ctl == nil {
		return turnstone.NetworkFacts{}, false
	}
	f, err := ctl.Network(ctx)
	return f, err == nil
}

// Pause pauses the machine, whose sandbox is s, and returns its changes. If the machine cannot be
// paused, unpaused has the reason, and the turn ends without its machine: see giveUp.
func (h *Machine) Pause(ctx context.Context, s *sandbox.Sandbox, b collect.Bounds) (
	c *collect.Changes, unpaused, err error) {
	ctx, cancel := context.WithTimeout(ctx, collect.TimeLimit)
	defer cancel()
	defer s.Guard(ctx)()
	h.mu.Lock()
	ctl := h.ctl
	h.mu.Unlock()
	res, err := s.Client().StateGetSession(ctx)
	if err == nil && ctl == nil {
		err = turnstone.Errorf("executor.held", turnstone.KindDead, string(s.ID()), "was ended")
	}
	if err != nil {
		return nil, nil, s.CauseOf(err)
	}
	st, unpaused := ctl.Pause(ctx)
	if unpaused != nil {
		c, err = h.giveUp(ctx, b)
		return c, unpaused, err
	}
	h.count(st.Used)
	d, err := ctl.Disk(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err = collect.OfPaused(ctx, s, d, st.Upper, res.Cwd, res.Env, b)
	return c, nil, err
}

// giveUp collects the turn's changes from a machine that cannot be paused, and ends the machine. A
// dead machine leaves nothing.
func (h *Machine) giveUp(ctx context.Context, b collect.Bounds) (*collect.Changes, error) {
	h.spent = true
	s, err := h.resume(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	h.mu.Lock()
	ctl := h.ctl
	h.mu.Unlock()
	return collect.Take(ctx, s, ctl.Disk, b, false)
}
