package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// MarkerSize is the length of a marker in bytes. A random marker of this length does not occur in a
// frame by accident.
const MarkerSize = 32

// A Port is an end of the byte stream between a host and its agent, which carries links in
// sequence. Where a link ends, each side sends a marker that both sides know; the bytes after the
// marker belong to the next link. Between two links the stream is empty. A machine can be cloned at
// that point because neither side holds a partial message.
//
// Call Expect before either side may send its marker, then End, then Link. The methods may be
// called from any goroutine, but not concurrently.
type Port struct {
	rw   io.ReadWriteCloser
	host bool
	link *Link

	mu     sync.Mutex
	marker []byte // nil: no end is expected
	recent []byte // the most recent bytes, fewer than a marker's length
	met    bool   // the other side's marker has been read
	// bytes followed the marker; their reader may have been the link, which has ended since
	behind bool
}

// A Linker is a stream of a port that is told when a link begins and ends on it. A machine that is
// saved after the end of a link finds another stream in its place, without data before the next link.
// No read is in progress during a call.
type Linker interface{ Linked(on bool) }

// linked tells the stream that a link begins or has ended.
func (p *Port) linked(on bool) {
	if l, ok := p.rw.(Linker); ok {
		l.Linked(on)
	}
}

// NewPort returns the port over rw. The port then owns rw. A host's rw must have the deadlines of a
// net.Conn.
func NewPort(rw io.ReadWriteCloser, host bool) *Port { return &Port{rw: rw, host: host} }

// Link starts the next link. The previous link must have ended.
func (p *Port) Link() (*Link, error) {
	if p.link != nil {
		return nil, turnstone.Errorf("wire.port", turnstone.KindInternal, "link",
			"a link is active")
	}
	p.linked(true)
	link, err := NewLink(&lease{p: p}, p.host)
	if err != nil {
		return nil, err
	}
	p.link = link
	return link, nil
}

// Expect sets the marker that will end the link. From then on the port searches for the marker.
func (p *Port) Expect(marker []byte) error {
	if len(marker) != MarkerSize {
		return turnstone.Errorf("wire.port", turnstone.KindInvalid, "marker",
			"its length is not 32 bytes")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marker, p.recent, p.met, p.behind = bytes.Clone(marker), nil, false, false
	return nil
}

// Forget reverts Expect after the other side has rejected the end.
func (p *Port) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marker, p.recent, p.met, p.behind = nil, nil, false, false
}

// Ended reports whether the other side's marker has arrived.
func (p *Port) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// End ends the link with the marker of Expect and returns when the stream is empty. After an error
// the port is unusable.
func (p *Port) End(ctx context.Context) error {
	p.mu.Lock()
	marker := p.marker
	p.mu.Unlock()
	if marker == nil {
		return turnstone.Errorf("wire.port", turnstone.KindInternal, "link",
			"its end was not expected")
	}
	d, timed := p.rw.(deadlines)
	if timed {
		defer context.AfterFunc(ctx, func() { _ = d.SetDeadline(time.Unix(1, 0)) })()
	}
	if p.link != nil {
		_ = p.link.Close() // returns when no read or write is in progress
		p.link = nil
	}
	p.linked(false)
	if timed {
		_ = d.SetDeadline(time.Time{})
		if ctx.Err() != nil { // the callback may have set the other deadline
			_ = d.SetDeadline(time.Unix(1, 0))
		}
	}
	sent := make(chan error, 1)
	go func() {
		_, err := p.rw.Write(marker)
		sent <- err
	}()
	err := p.drain()
	if err == nil {
		err = <-sent
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return turnstone.NewError("wire.port", turnstone.KindDead, "link", err)
	}
	p.Forget()
	return nil
}

// Close closes the stream and its link.
func (p *Port) Close() error {
	err := p.rw.Close()
	if p.link != nil {
		_ = p.link.Close()
	}
	return err
}

type deadlines interface{ SetDeadline(time.Time) error }

// drain reads up to the other side's marker.
func (p *Port) drain() error {
	buf := make([]byte, 16<<10)
	for !p.Ended() {
		if _, err := p.read(buf); err != nil && !errors.Is(err, io.EOF) {
			return err
		} else if errors.Is(err, io.EOF) && !p.Ended() {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

var errBehindMarker = errors.New("data followed the link's end")

// read reads, and searches for the marker if one is expected. It returns io.EOF after the marker.
// Only one goroutine may call read at a time.
func (p *Port) read(b []byte) (int, error) {
	p.mu.Lock()
	met, behind := p.met, p.behind
	p.mu.Unlock()
	switch {
	case behind:
		return 0, errBehindMarker
	case met:
		return 0, io.EOF
	}
	n, err := p.rw.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.marker == nil || n == 0 {
		return n, err
	}
	seen := append(p.recent, b[:n]...)
	if at := bytes.Index(seen, p.marker); at >= 0 {
		if at+MarkerSize != len(seen) {
			p.behind = true
			return 0, errBehindMarker
		}
		p.met, p.recent = true, nil
		return 0, io.EOF // a link at its end has no reader
	}
	p.recent = bytes.Clone(seen[max(0, len(seen)-MarkerSize+1):])
	return n, err
}

// A lease is a link's view of the port: closing the lease leaves the stream open.
type lease struct {
	p      *Port
	mu     sync.Mutex
	closed bool
}

func (l *lease) Read(b []byte) (int, error) {
	if l.isClosed() {
		return 0, io.ErrClosedPipe
	}
	return l.p.read(b)
}

func (l *lease) Write(b []byte) (int, error) {
	if l.isClosed() {
		return 0, io.ErrClosedPipe
	}
	return l.p.rw.Write(b)
}

// ending implements ender: a part of the other side's marker is not a frame.
func (l *lease) ending() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.p.marker != nil
}

func (l *lease) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Close ends pending reads and writes. Unless the link's end is expected, Close closes the stream
// too.
func (l *lease) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.p.mu.Lock()
	expected := l.p.marker != nil
	l.p.mu.Unlock()
	if !expected {
		return l.p.rw.Close()
	}
	if d, ok := l.p.rw.(deadlines); ok {
		return d.SetDeadline(time.Unix(1, 0))
	}
	return nil // the other side's marker ends a read
}
