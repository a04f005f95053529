// Package sandbox starts machines from templates and makes each of them a separate sandbox: with
// fresh random numbers, an identity, a network, and a connection to its agent.
package sandbox

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/metered"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Sandbox is a machine that was restored, has its own identity and is ready for work. The caller
// must Close it. Its methods are safe for concurrent use.
type Sandbox struct {
	Template *turnstone.Template
	Image    string // the requested name

	machine Machine
	about   About
	grace   time.Duration // of Guard

	// Of a machine that a Launcher has started:
	source substrate.Machine   // the machine's source
	driver substrate.Substrate // nil: the machine was attached
	port   *wire.Port          // nil: the machine was attached
	cpus   int                 // that its kernel has brought up; 0: unknown

	net       *guestNetwork  // nil: none
	meter     *metered.Meter // gets what was used; nil: nobody does
	meterOnce sync.Once

	launcher *Launcher   // nil: the machine was attached
	leaving  atomic.Bool // see CloseSoon

	usedMu sync.Mutex
	used   turnstone.Used // so far

	slot     *statedir.Lock // its place among the concurrent sandboxes
	free     func()         // releases its resources; may be nil
	freeOnce sync.Once

	mu     sync.Mutex // for link and client, which a Pause or Snapshot replaces
	link   *wire.Link
	client *wire.Client
	broken error // the reason why the machine was ended after its guest's link broke

	live   sync.Mutex // one Pause, Resume or Snapshot at a time
	paused bool
	upper  string // the result of Pause

	spoolDir string   // for exported
	exported *os.File // while paused, if the host cannot read the machine's disk
}

// A Machine is the part of a machine that every Sandbox needs. A machine that a Launcher has
// started is a substrate.Sandbox, and may have the optional capabilities of package substrate.
type Machine interface {
	ID() turnstone.SandboxID
	Done() <-chan struct{}
	Err() error
	Close() error
}

// About describes a machine.
type About struct {
	Substrate string // the driver's name
	Isolation string // the kind of isolation
	Shape     turnstone.Shape
}

// Attach returns a sandbox for a machine that another process has started and configured, and
// client, which is connected to its agent. This process can neither pause nor clone the sandbox.
func (l *Launcher) Attach(tmpl *turnstone.Template, image string, m Machine, about About,
	client *wire.Client) *Sandbox {
	return &Sandbox{Template: tmpl, Image: image, machine: m, about: about, grace: l.KillGrace,
		client: client}
}

// ID returns the sandbox's ID.
func (s *Sandbox) ID() turnstone.SandboxID { return s.machine.ID() }

// Substrate returns the name of the sandbox's driver.
func (s *Sandbox) Substrate() string { return s.about.Substrate }

// Isolation returns the kind of the sandbox's isolation.
func (s *Sandbox) Isolation() string { return s.about.Isolation }

// Shape returns the shape of its machine.
func (s *Sandbox) Shape() turnstone.Shape { return s.about.Shape }

// Source returns the source from which a Launcher has started the machine.
func (s *Sandbox) Source() substrate.Machine { return s.source }

// Origin returns what the machine was made of; nil for a machine that another process has started.
func (s *Sandbox) Origin() *turnstone.Origin {
	if s.driver == nil {
		return nil
	}
	return OriginOf(&Source{Machine: s.source, Driver: s.driver})
}

// OriginOf returns what machines of src are made of.
func OriginOf(src *Source) *turnstone.Origin {
	m := &turnstone.Origin{Kernel: src.Machine.KernelDigest, Init: src.Machine.InitDigest,
		Agent: src.Machine.AgentDigest, Root: src.Machine.RootDigest}
	if p, ok := src.Driver.(interface{ ProgramDigest() turnstone.Digest }); ok {
		m.Program = p.ProgramDigest()
	}
	return m
}

// Client returns the sandbox's own connection of the wire. Resume and Snapshot replace it.
func (s *Sandbox) Client() *wire.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// Connect opens another connection to the agent, which the caller closes.
func (s *Sandbox) Connect() (wire.LinkStream, error) {
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	return link.Open()
}

// Done is closed when the machine has ended.
func (s *Sandbox) Done() <-chan struct{} { return s.machine.Done() }

// Err returns the reason why the machine ended: nil before Done and after Close.
func (s *Sandbox) Err() error {
	if err := s.machine.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// Used returns what the machine has used so far. After its end it is what the last call found.
func (s *Sandbox) Used() turnstone.Used {
	var now turnstone.Used
	if m, ok := s.machine.(interface{ CPUTime() time.Duration }); ok {
		now.CPU = turnstone.Millis(m.CPUTime())
	}
	if s.net != nil && s.net.stack != nil {
		t := s.net.stack.Totals()
		now.Sent, now.Received = turnstone.Bytes(t.Sent), turnstone.Bytes(t.Received)
	}
	s.usedMu.Lock()
	defer s.usedMu.Unlock()
	s.used = s.used.Max(now)
	return s.used
}

// Close ends the machine immediately and frees its resources. The machine ends first, because a
// guest that reads nothing could delay a connection's end.
func (s *Sandbox) Close() error {
	_ = s.Used() // the machine's end takes the processor time away
	err := s.machine.Close()
	s.net.close()
	s.count()
	s.freeOnce.Do(func() {
		if s.free != nil {
			s.free()
		}
		s.slot.Release()
	})
	s.live.Lock()
	s.dropExport()
	s.live.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		_ = s.link.Close()
	}
	if s.client != nil {
		_ = s.client.Close()
	}
	return err
}

// count adds what the sandbox used to its meter.
func (s *Sandbox) count() {
	s.meterOnce.Do(func() { s.meter.Add(s.Used()) })
}

// Guard ends the machine if ctx has ended and release is not called soon afterwards: a guest is
// asked to kill its processes, and a hostile guest may not obey.
func (s *Sandbox) Guard(ctx context.Context) (release func()) {
	released := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-released:
		case <-time.After(s.grace):
			_ = s.machine.Close()
		}
	})
	return func() {
		stop()
		close(released)
	}
}

// Ended reports whether the machine has ended, for any reason.
func (s *Sandbox) Ended() bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// CauseOf prefers the reason why the machine ended to err, which is the effect of that end on the
// connection.
func (s *Sandbox) CauseOf(err error) error {
	if err == nil || turnstone.KindOf(err) != turnstone.KindDead {
		return err
	}
	select {
	case <-s.Done():
		if cause := s.Err(); cause != nil {
			return cause
		}
	case <-time.After(2 * time.Second): // the connection is gone: the process follows
	}
	return err
}

// Interrupted returns an error that names the operation that the end of ctx interrupted. It returns
// err if ctx was not canceled.
func Interrupted(ctx context.Context, err error, where string) error {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return turnstone.NewError("executor.run", turnstone.KindCanceled, "interrupted",
		errors.New(where))
}
