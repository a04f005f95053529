package main

import (
	"errors"
	"io"
	"net"
	"strings"
)

// A peer is a server on this machine's loopback to which sandboxes connect. The first byte of a
// connection selects its function: 'u' to read everything and answer with one byte at its end, 'd'
// to send size bytes, 'e' to answer with one byte.
type peer struct {
	l          net.Listener
	addr, port string
	size       int
}

// peerSize is the number of bytes in each direction.
const peerSize = 64 << 20

func newPeer(size int) (*peer, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &peer{l: l, addr: l.Addr().String(), size: size}
	_, p.port, _ = strings.Cut(p.addr, ":")
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go p.serve(conn)
			}
		}
	}()
	return p, nil
}

func (p *peer) close() { _ = p.l.Close() }

func (p *peer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var kind [1]byte
	if _, err := io.ReadFull(conn, kind[:]); err != nil {
		return
	}
	switch kind[0] {
	case 'u':
		// A plain loop, because with io.Discard the kernel would discard everything.
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn},
			make([]byte, 256<<10))
		_, _ = conn.Write(kind[:])
	case 'd':
		block := make([]byte, 256<<10)
		for range p.size / len(block) {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	case 'e':
		_, _ = conn.Write(kind[:])
	}
}
