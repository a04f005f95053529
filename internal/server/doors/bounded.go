package doors

import (
	"net"
	"sync"
)

// bounded is a listener that bounds the connections at one time. Others wait in the queue of the
// system, so that callers of a door leave the server's files to others.
type bounded struct {
	net.Listener
	places chan struct{}
	ended  chan struct{}
	end    func()
}

func bound(l net.Listener, most int) *bounded {
	b := &bounded{Listener: l, places: make(chan struct{}, most), ended: make(chan struct{})}
	b.end = sync.OnceFunc(func() { close(b.ended) })
	return b
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.places <- struct{}{}:
	case <-b.ended:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &placed{Conn: c, free: sync.OnceFunc(func() { <-b.places })}, nil
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.end()
	return b.Listener.Close()
}

// A placed connection frees its place when it is closed.
type placed struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *placed) Close() error {
	defer c.free()
	return c.Conn.Close()
}
