// Package sandboxtest has machines for tests that are no machines: an agent in the
// same process, at the other end of a link of the wire.
package sandboxtest

import (
	"net"
	"sync"

	"turnstone.dev/turnstone/wire"
)

// A Machine is an agent in this process, as sandboxes.Machine.
type Machine struct {
	host, guest *wire.Link
	once        sync.Once
	done        chan struct{}

	mu  sync.Mutex
	err error
}

// New returns a machine whose agent serves each connection with serve, in a
// goroutine of its own.
func New(serve func(wire.LinkStream)) (*Machine, error) {
	a, b := net.Pipe()
	host, err := wire.NewLink(a, true)
	if err != nil {
		return nil, err
	}
	guest, err := wire.NewLink(b, false)
	if err != nil {
		return nil, err
	}
	m := &Machine{host: host, guest: guest, done: make(chan struct{})}
	go func() {
		for {
			s, err := guest.Accept()
			if err != nil {
				return
			}
			go serve(s)
		}
	}()
	return m, nil
}

// Serve returns an agent that answers with d.
func Serve(d *wire.Dispatcher) func(wire.LinkStream) {
	return func(s wire.LinkStream) {
		c := wire.NewConn(s, wire.Options{Dispatcher: d})
		<-c.Done()
		_ = c.Close()
	}
}

// Connect implements sandboxes.Machine.
func (m *Machine) Connect() (wire.LinkStream, error) { return m.host.Open() }

// Done implements sandboxes.Machine.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Err implements sandboxes.Machine.
func (m *Machine) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Close implements sandboxes.Machine.
func (m *Machine) Close() error {
	m.end(nil)
	return nil
}

// Die makes the machine end by itself.
func (m *Machine) Die(err error) { m.end(err) }

func (m *Machine) end(err error) {
	m.once.Do(func() {
		m.mu.Lock()
		m.err = err
		m.mu.Unlock()
		_ = m.host.Close()
		_ = m.guest.Close()
		close(m.done)
	})
}
