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

// MarkerSize is the length of a marker, in bytes. One that is random is in no
// frame but by intent.
const MarkerSize = 32

// A Port is one end of the byte stream between a host and its agent, which carries
// one link after another. Where a link ends, each side sends a marker that both
// know; what comes behind it belongs to the next link. Nothing is in the stream
// between the two: then a machine can be cloned, since no side has half a word.
//
// Expect comes before either side may send its marker, then End, then Link.
// The methods may be called from any goroutine, one at a time.
type Port struct {
	rw   io.ReadWriteCloser
	host bool
	link *Link

	mu     sync.Mutex
	marker []byte // nil: no end is expected
	recent []byte // what was read last, less than a marker's length
	met    bool   // the other side's marker has been read
	behind bool   // and something behind it; whoever read that may be the link, which has ended since
}

// NewPort returns the port over rw, which then belongs to it. A host's rw must have
// the deadlines of a net.Conn.
func NewPort(rw io.ReadWriteCloser, host bool) *Port { return &Port{rw: rw, host: host} }

// Link starts the next link. The one before must have been ended.
func (p *Port) Link() (*Link, error) {
	if p.link != nil {
		return nil, turnstone.Errorf("wire.port", turnstone.KindInternal, "link",
			"there is one already")
	}
	link, err := NewLink(&lease{p: p}, p.host)
	if err != nil {
		return nil, err
	}
	p.link = link
	return link, nil
}

// Expect says how the link will end. From then on the port looks for the marker.
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

// Forget takes Expect back: the other side has refused.
func (p *Port) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marker, p.recent, p.met, p.behind = nil, nil, false, false
}

// Ended says whether the other side's marker has come.
func (p *Port) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// End ends the link as Expect has said, and returns when the stream is empty. An
// error means that the port is of no use any more.
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
		_ = p.link.Close() // returns when neither reads nor writes are under way
		p.link = nil
	}
	if timed {
		_ = d.SetDeadline(time.Time{})
		if ctx.Err() != nil { // it may just have set the other
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

// Close closes the stream, and with it the link.
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

var errBehindMarker = errors.New("something came behind the link's end")

// read reads, and looks for the marker if one is expected. It returns io.EOF when
// it has come. It is called by one goroutine at a time.
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
		return 0, io.EOF // nobody reads a link that is at its end
	}
	p.recent = bytes.Clone(seen[max(0, len(seen)-MarkerSize+1):])
	return n, err
}

// A lease is the port as one link has it: closing it leaves the stream open.
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

// ending implements ender: a part of the other side's marker is no frame.
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

// Close ends what is under way. Unless the link's end is expected it closes the
// stream too.
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
	return nil // the other side's marker is what ends a read
}
