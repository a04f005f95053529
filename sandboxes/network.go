package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// Networked is what a Machine may be able to do beside the usual, when it has a network.
type Networked interface {
	// TakeNetwork returns what happened on it, and false when there is none.
	TakeNetwork(ctx context.Context) (network.Facts, bool)
	// DialGuest opens a connection to a TCP port of the sandbox, which has CloseWrite.
	DialGuest(ctx context.Context, port uint16) (net.Conn, error)
}

const (
	// guestTime is how long a sandbox may take to answer a connection.
	guestTime = 10 * time.Second
	// maxFacts bounds the answer to network, in bytes.
	maxFacts = maxControl / 2
	// maxForwarded bounds the connections to ports of a sandbox at one time.
	maxForwarded = 256
)

// Network returns what happened on the sandbox's network since it was asked for last.
// The error is of kind Unavailable when it has none.
func (c *Control) Network(ctx context.Context) (network.Facts, error) {
	a, _, err := c.do(ctx, controlRequest{Op: opNetwork})
	if err != nil || a.Network == nil {
		return network.Facts{}, err
	}
	return *a.Network, nil
}

// DialGuest opens a connection to a TCP port of a sandbox that lives. The error is of
// kind Unavailable when nobody listens there, or it has no network.
func (s *Store) DialGuest(ctx context.Context, id turnstone.SandboxID, port uint16) (net.Conn, error) {
	c, err := s.Control(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	_, file, err := c.do(ctx, controlRequest{Op: opDial, Port: port})
	if err != nil {
		closeFile(file)
		return nil, err
	}
	if file == nil {
		return nil, turnstone.Errorf("sandbox.dial", turnstone.KindInternal, "sandbox "+string(id),
			"no connection came with the answer")
	}
	defer closeFile(file)
	return net.FileConn(file)
}

// Expose forwards the connections that l takes to a TCP port of a sandbox, until ctx
// ends or the sandbox does; it closes l. failed is told of each connection that could not
// be forwarded, from any goroutine; nil: nobody is.
func (s *Store) Expose(ctx context.Context, id turnstone.SandboxID, port uint16, l net.Listener, failed func(error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { s.untilEnd(ctx, id, cancel) })
	slots := make(chan struct{}, maxForwarded)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil { // out of descriptors, most likely
			time.Sleep(100 * time.Millisecond)
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			guest, err := s.DialGuest(ctx, id, port)
			if err != nil {
				_ = conn.Close()
				if failed != nil && ctx.Err() == nil {
					failed(err)
				}
				return
			}
			defer context.AfterFunc(ctx, func() { _ = guest.Close() })()
			Splice(guest, conn)
		})
	}
}

// untilEnd looks now and then whether the sandbox still lives, and says when it does not.
func (s *Store) untilEnd(ctx context.Context, id turnstone.SandboxID, ended context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		i, err := s.Get(id)
		switch {
		case turnstone.KindOf(err) == turnstone.KindNotFound:
			ended(turnstone.Errorf("sandbox.expose", turnstone.KindDead, "sandbox "+string(id),
				"it was removed"))
			return
		case err == nil && i.State.Final():
			ended(turnstone.NewError("sandbox.expose", turnstone.KindDead, "sandbox "+i.Title(),
				errors.New("it is "+string(i.State))))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// networked is the machine as one with a network.
func (h *holder) networked() (Networked, error) {
	m, ok := h.machine.(Networked)
	if !ok {
		return nil, turnstone.Errorf("sandbox.network", turnstone.KindUnavailable, "sandbox "+string(h.id),
			"it has no network")
	}
	return m, nil
}

// facts answers the request network.
func (h *holder) facts(ctx context.Context, a *controlAnswer) error {
	m, err := h.networked()
	if err != nil {
		return err
	}
	f, ok := m.TakeNetwork(ctx)
	if !ok {
		return turnstone.Errorf("sandbox.network", turnstone.KindUnavailable, "sandbox "+string(h.id),
			"it has no network")
	}
	for n := len(f.Refused); ; n /= 2 {
		f.Cut(n)
		if b, err := json.Marshal(f); err != nil || len(b) <= maxFacts || n == 0 {
			a.Network = &f
			return err
		}
	}
}

// dialGuest answers the request dial: with one end of a pair of sockets, whose other end
// is copied to and from the sandbox until either has ended.
func (h *holder) dialGuest(ctx context.Context, port uint16) (*os.File, error) {
	m, err := h.networked()
	if err != nil {
		return nil, err
	}
	if h.status().Paused {
		return nil, pausedError(string(h.id))
	}
	select {
	case h.forwards <- struct{}{}:
	default:
		return nil, turnstone.Errorf("sandbox.dial", turnstone.KindExhausted, "sandbox "+string(h.id),
			"too many connections to its ports")
	}
	free := func() { <-h.forwards }
	ctx, cancel := context.WithTimeout(ctx, guestTime)
	defer cancel()
	guest, err := m.DialGuest(ctx, port)
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
		go func() { // the sandbox's end is that of its connections
			select {
			case <-h.machine.Done():
				_, _ = guest.Close(), ours.Close()
			case <-stop:
			}
		}()
		Splice(guest, ours)
	})
	return theirs, nil
}

// connPair returns two ends of a stream.
func connPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, turnstone.NewError("sandbox.dial", turnstone.KindUnavailable, "socketpair",
			err)
	}
	mine := os.NewFile(uintptr(fds[0]), "forward")
	defer closeFile(mine)
	conn, err := net.FileConn(mine)
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return conn, os.NewFile(uintptr(fds[1]), "forward"), nil
}

// Splice copies both ways until both sides have ended, or one has failed, and closes both.
func Splice(a, b net.Conn) {
	var both sync.WaitGroup
	pump := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		w, ok := dst.(interface{ CloseWrite() error })
		if err != nil || !ok || w.CloseWrite() != nil {
			_, _ = a.Close(), b.Close()
		}
	}
	both.Go(func() { pump(a, b) })
	both.Go(func() { pump(b, a) })
	both.Wait()
	_, _ = a.Close(), b.Close()
}
