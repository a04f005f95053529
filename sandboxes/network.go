package sandboxes

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/forward"
)

// Networked holds the optional abilities of a Machine with a network.
type Networked interface {
	// TakeNetwork returns the network's facts since the last call, and false if the machine has no
	// network.
	TakeNetwork(ctx context.Context) (turnstone.NetworkFacts, bool)
	// DialGuest opens a connection to a TCP port of the sandbox. The connection has CloseWrite.
	DialGuest(ctx context.Context, port uint16) (net.Conn, error)
}

const (
	// guestTime bounds the time in which a sandbox answers a connection.
	guestTime = 10 * time.Second
	// maxFacts bounds the answer to network in bytes.
	maxFacts = maxControl / 2
	// maxForwarded bounds the concurrent connections to ports of a sandbox.
	maxForwarded = 256
)

// Network returns the facts of the sandbox's network since the last call. The error is of kind
// KindUnavailable if the sandbox has no network.
func (c *Control) Network(ctx context.Context) (turnstone.NetworkFacts, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opNetwork})
	if err != nil || a.Network == nil {
		return turnstone.NetworkFacts{}, err
	}
	return *a.Network, nil
}

// DialGuest opens a connection to a TCP port of a running sandbox: at the address of its network
// card, or else at its loopback. The error is of kind KindUnavailable if no process listens there.
func (s *Store) DialGuest(ctx context.Context, id turnstone.SandboxID,
	port uint16) (net.Conn, error) {
	c, err := s.Control(ctx, id)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_, file, err := c.do(ctx, controlRequest{Op: opDial, Port: port})
	if err != nil {
		closeFile(file)
		return nil, err
	}
	if file == nil {
		return nil, turnstone.Errorf("sandbox.dial", turnstone.KindInternal, "sandbox "+string(id),
			"the answer contains no connection")
	}
	defer closeFile(file)
	return net.FileConn(file)
}

// Expose forwards the connections of l to a TCP port of a sandbox, until ctx or the sandbox ends,
// and closes l. failed is called from any goroutine for each connection that could not be
// forwarded; it may be nil.
func (s *Store) Expose(ctx context.Context, id turnstone.SandboxID, port uint16, l net.Listener,
	failed func(error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { s.untilEnd(ctx, id, cancel) })
	return forward.Serve(ctx, l, maxForwarded,
		func(ctx context.Context) (io.ReadWriteCloser, error) { return s.DialGuest(ctx, id, port) }, failed)
}

// untilEnd polls whether the sandbox still runs, and returns when it has ended.
func (s *Store) untilEnd(ctx context.Context, id turnstone.SandboxID,
	ended context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		i, err := s.read(id)
		switch {
		case turnstone.KindOf(err) == turnstone.KindNotFound:
			ended(turnstone.Errorf("sandbox.expose", turnstone.KindDead, "sandbox "+string(id),
				"it was removed"))
			return
		case err == nil && i.State.Final():
			ended(turnstone.Errorf("sandbox.expose", turnstone.KindDead, "sandbox "+i.Title(),
				"it is %s", i.State))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// facts answers the request network.
func (h *holder) facts(ctx context.Context, a *controlAnswer) error {
	m, ok := h.machine.(Networked)
	var f turnstone.NetworkFacts
	if ok {
		f, ok = m.TakeNetwork(ctx)
	}
	if !ok {
		return turnstone.Errorf("sandbox.network", turnstone.KindUnavailable,
			"sandbox "+string(h.id),
			"it has no network")
	}
	for n := max(len(f.Refused), len(f.Ended)); ; n /= 2 {
		f.Cut(n)
		if b, err := json.Marshal(f); err != nil || len(b) <= maxFacts || n == 0 {
			a.Network = &f
			return err
		}
	}
}

// dialGuest answers the request dial with one end of a socket pair. It copies between the other end
// and the sandbox until either has ended.
func (h *holder) dialGuest(ctx context.Context, port uint16) (*os.File, error) {
	if h.status().Paused {
		return nil, pausedError(string(h.id))
	}
	select {
	case h.forwards <- struct{}{}:
	default:
		return nil, turnstone.Errorf("sandbox.dial", turnstone.KindExhausted,
			"sandbox "+string(h.id),
			"too many connections to the sandbox's ports")
	}
	free := func() { <-h.forwards }
	ctx, cancel := context.WithTimeout(ctx, guestTime)
	defer cancel()
	guest, err := h.ports.Connect(ctx, port)
	if err != nil {
		free()
		return nil, err
	}
	ours, theirs, err := connPair()
	if err != nil {
		free()
		_ = guest.Close()
		return nil, err
	}
	h.forwarding.Go(func() {
		defer free()
		stop := make(chan struct{})
		defer close(stop)
		go func() { // the sandbox's end ends its connections
			select {
			case <-h.machine.Done():
				_, _ = guest.Close(), ours.Close()
			case <-stop:
			}
		}()
		forward.Join(guest, ours)
	})
	return theirs, nil
}
