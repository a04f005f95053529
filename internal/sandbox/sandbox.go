// Package sandbox starts machines from templates and makes each of them a sandbox of its own: with
// fresh random numbers, an identity, a network, and a connection to its agent.
package sandbox

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Sandbox is a machine that was restored, made its own and is ready for work.
// The caller must Close it. Its methods are safe for concurrent use.
type Sandbox struct {
	Template *template.Template
	Image    string // the name that was asked for

	machine Machine
	about   About
	grace   time.Duration // of Guard

	// Of a machine that a Launcher has started:
	source substrate.Machine   // what machine was started from
	driver substrate.Substrate // nil: the machine was attached
	port   *wire.Port          // nil: the machine was attached
	layers int                 // that lie in its slots
	home   bool                // it has a home disk
	cpus   int                 // that its kernel has brought up; 0: not known

	net *guestNetwork // nil: none

	slot     *statedir.Lock // its place among those that run at once
	free     func()         // frees what it lies on; may be nil
	freeOnce sync.Once

	mu     sync.Mutex // for link and client, which are others after a Pause or Snapshot
	link   *wire.Link
	client *wire.Client
	broken error // what ended the machine that its guest's link was ended for

	live   sync.Mutex // one Pause, Resume or Snapshot at a time
	paused bool
	upper  string // what Pause returns

	spoolDir string   // for exported
	exported *os.File // while paused, of a machine whose disk the host cannot read
}

// A Machine is what a Sandbox needs of its machine in any case. A machine that a Launcher has
// started is a substrate.Sandbox, and may have the abilities that package substrate names.
type Machine interface {
	ID() turnstone.SandboxID
	Done() <-chan struct{}
	Err() error
	Close() error
}

// About describes a machine.
type About struct {
	Substrate string // the name of what runs it
	Isolation string // how it is kept apart
	Shape     turnstone.Shape
}

// Attach returns a sandbox for a machine that another process has started and configured, and
// client, which is connected to its agent. The sandbox can neither be paused nor cloned from here.
func (l *Launcher) Attach(tmpl *template.Template, image string, m Machine, about About,
	client *wire.Client) *Sandbox {
	return &Sandbox{Template: tmpl, Image: image, machine: m, about: about, grace: l.KillGrace,
		client: client}
}

// ID names the sandbox.
func (s *Sandbox) ID() turnstone.SandboxID { return s.machine.ID() }

// Substrate is the name of what runs it.
func (s *Sandbox) Substrate() string { return s.about.Substrate }

// Isolation says how it is kept apart.
func (s *Sandbox) Isolation() string { return s.about.Isolation }

// Shape is that of its machine.
func (s *Sandbox) Shape() turnstone.Shape { return s.about.Shape }

// Source is what a Launcher has started the machine from.
func (s *Sandbox) Source() substrate.Machine { return s.source }

// Client is a connection of the wire that belongs to the sandbox. After Resume and
// Snapshot it is another one.
func (s *Sandbox) Client() *wire.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// Connect opens one more connection to the agent, which the caller closes.
func (s *Sandbox) Connect() (wire.LinkStream, error) {
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	return link.Open()
}

// Done is closed when the machine has ended.
func (s *Sandbox) Done() <-chan struct{} { return s.machine.Done() }

// Err says why the machine ended: nil before Done and after Close.
func (s *Sandbox) Err() error {
	if err := s.machine.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// Close ends the machine at once and frees all it holds. The machine goes first:
// a guest that reads nothing could hold up a connection's end.
func (s *Sandbox) Close() error {
	err := s.machine.Close()
	s.net.close()
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

// Guard ends the machine when ctx has ended and release is not called soon after: a guest is
// asked to kill its processes, and a hostile one need not obey.
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

// Ended says whether the machine is gone, for whatever reason.
func (s *Sandbox) Ended() bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// CauseOf prefers the reason why the machine ended to err, which is what its end
// looked like from the connection.
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

// Interrupted names the place where the end of ctx has cut off a piece of work. It returns err
// where ctx was not canceled.
func Interrupted(ctx context.Context, err error, where string) error {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return turnstone.NewError("executor.run", turnstone.KindCanceled, "interrupted",
		errors.New(where))
}
