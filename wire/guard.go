package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Frames of yamux (its spec.md): a header of 12 bytes with version, type, flags (2), stream (4) and
// length (4). Only a data frame has a body, of that length.
const (
	muxHead    = 12
	muxData    = 0
	muxWindow  = 1 // the length is the number of additional bytes that may be sent
	muxFlagSYN = 1
	muxFlagACK = 2
	muxFlagFIN = 4
	muxFlagRST = 8
	muxInitial = 256 << 10 // initial window of a stream in bytes
)

// maxEnded is the number of streams, ended by the other side, that a guard remembers: yamux can
// have data in transit after a stream's end.
const maxEnded = 1024

// A linkGuard follows yamux's frames and ends the link at the first frame that neither side of a
// link sends. yamux would use unbounded memory for some of these frames, wait forever for the body
// of others, and ignore the rest. On a link only the host opens streams, neither side sends pings
// or GoAway frames, and neither side exceeds the window that the other side granted.
type linkGuard struct {
	io.ReadWriteCloser
	host bool
	in   headReader // used by yamux's reading goroutine
	out  headReader // used by yamux's writing goroutine
	held []byte     // a written header that waits for its body

	mu      sync.Mutex
	streams map[uint32]*muxStream
	ended   []uint32 // streams that the other side has ended, oldest first
	opened  uint32   // number of the newest stream
	stop    error    // why reading has ended
}

// A muxStream is a guard's state of a stream.
type muxStream struct {
	receive int64 // bytes that the other side may send
	send    int64 // bytes that this side may send
	known   bool  // the agent has acknowledged it
	fin     bool  // the other side has ended its half
	ended   bool  // the other side has ended its half or reset the stream
}

// A headReader finds the headers in a link's bytes.
type headReader struct {
	head [muxHead]byte
	have int
	body int64 // remaining bytes of the current frame's body
}

// next consumes bytes from p up to the end of the next header and returns the header; without a
// header it consumes all of p.
func (r *headReader) next(p []byte) (rest []byte, head *linkFrame) {
	if skip := min(r.body, int64(len(p))); skip > 0 {
		r.body -= skip
		p = p[skip:]
	}
	k := copy(r.head[r.have:], p)
	if r.have += k; r.have < muxHead {
		return p[k:], nil
	}
	r.have = 0
	h := &linkFrame{version: r.head[0], kind: r.head[1], flags: binary.BigEndian.Uint16(r.head[2:]),
		stream: binary.BigEndian.Uint32(r.head[4:]),
		length: int64(binary.BigEndian.Uint32(r.head[8:]))}
	if h.kind == muxData {
		r.body = h.length
	}
	return p[k:], h
}

type linkFrame struct {
	version, kind byte
	flags         uint16
	stream        uint32
	length        int64
}

// Read implements io.Reader. It withholds a forbidden frame and everything after it.
func (g *linkGuard) Read(p []byte) (int, error) {
	g.mu.Lock()
	stop := g.stop
	g.mu.Unlock()
	if stop != nil {
		return 0, stop
	}
	n, err := g.ReadWriteCloser.Read(p)
	good := 0
	for good < n {
		rest, h := g.in.next(p[good:n])
		bad, head := g.admit(h), muxHead
		if h == nil {
			head = g.in.have
		}
		if bad != nil {
			if good = max(good, n-len(rest)-head); good == 0 {
				return 0, bad
			}
			return good, nil // the next call ends the link
		}
		good = n - len(rest)
	}
	return n, err
}

// An ender is a stream that is about to end a link by itself: bytes that are not a frame are then
// allowed.
type ender interface{ ending() bool }

// err returns why the link was ended, if the other side's frames were the reason.
func (g *linkGuard) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop == io.EOF {
		return nil
	}
	return g.stop
}

// admit checks a frame of the other side; nil: no complete frame. The rest of an incomplete frame
// may never arrive, and a call would wait for it.
func (g *linkGuard) admit(h *linkFrame) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	why := ""
	switch {
	case h != nil:
		why = g.judge(h)
	case g.in.have > 0 && g.in.head[0] != 0:
		why = fmt.Sprintf("its version is %d", g.in.head[0])
	case g.in.have > 1 && g.in.head[1] > muxWindow:
		why = fmt.Sprintf("its type is %d", g.in.head[1])
	}
	if why == "" {
		return nil
	}
	g.stop = protocolError("the link carried a forbidden frame: %s", why)
	if e, ok := g.ReadWriteCloser.(ender); ok && e.ending() {
		g.stop = io.EOF
	}
	return g.stop
}

// judge returns the fault of a frame of the other side; "": none. g.mu is held.
func (g *linkGuard) judge(h *linkFrame) string {
	switch {
	case h.version != 0:
		return fmt.Sprintf("its version is %d", h.version)
	case h.kind != muxData && h.kind != muxWindow:
		return fmt.Sprintf("its type is %d", h.kind)
	case h.flags&muxFlagSYN != 0:
		if why := g.open(h); why != "" {
			return why
		}
	case h.stream == 0 || h.stream > g.opened || h.stream%2 == 0:
		return fmt.Sprintf("its stream %d was never opened", h.stream)
	}
	allowed := uint16(muxFlagSYN | muxFlagFIN | muxFlagRST)
	if g.host {
		allowed = muxFlagACK | muxFlagFIN | muxFlagRST
	}
	if h.kind == muxData {
		allowed &= muxFlagSYN | muxFlagACK
	}
	if h.flags&^allowed != 0 {
		return fmt.Sprintf("its flags are %#x", h.flags)
	}
	return g.count(h)
}

// open records a stream that the other side opens. g.mu is held.
func (g *linkGuard) open(h *linkFrame) string {
	if g.host {
		return "it opens a stream"
	}
	if h.stream%2 == 0 || h.stream <= g.opened {
		return fmt.Sprintf("it opens stream %d after %d", h.stream, g.opened)
	}
	g.begin(h.stream)
	return ""
}

func (g *linkGuard) begin(id uint32) {
	if g.streams == nil {
		g.streams = make(map[uint32]*muxStream)
	}
	g.opened = id
	g.streams[id] = &muxStream{receive: muxInitial, send: muxInitial}
}

// count checks a frame of the other side against the bytes granted to that side, and its grants
// against the window. g.mu is held.
func (g *linkGuard) count(h *linkFrame) string {
	s := g.streams[h.stream]
	if s == nil { // the stream ended long ago
		if h.kind == muxData || h.length > linkWindow {
			return fmt.Sprintf("its stream %d has ended", h.stream)
		}
		return ""
	}
	if h.kind == muxData {
		if h.length > s.receive {
			return fmt.Sprintf("it has %d bytes, and %d were granted", h.length, s.receive)
		}
		s.receive -= h.length
	} else if s.send += h.length; s.send > linkWindow {
		return fmt.Sprintf("it grants %d bytes more than a window", s.send-linkWindow)
	}
	if h.flags&muxFlagACK != 0 {
		if s.known {
			return fmt.Sprintf("it acknowledges stream %d again", h.stream)
		}
		s.known = true
	}
	if h.flags&muxFlagFIN != 0 {
		if s.fin {
			return fmt.Sprintf("it ends stream %d again", h.stream)
		}
		s.fin = true
	}
	if h.flags&(muxFlagFIN|muxFlagRST) != 0 && !s.ended {
		s.ended = true
		g.ended = append(g.ended, h.stream)
		if len(g.ended) > maxEnded {
			delete(g.streams, g.ended[0])
			g.ended = g.ended[1:]
		}
	}
	return ""
}

// joinLimit is the largest body that is copied to its header.
const joinLimit = 16 << 10

// Write implements io.Writer. yamux writes a frame's header and body separately. Joined writes cost
// a guest a single exit from its machine instead of two.
func (g *linkGuard) Write(p []byte) (int, error) {
	var last *linkFrame
	for rest := p; len(rest) > 0; {
		var h *linkFrame
		if rest, h = g.out.next(rest); h != nil {
			g.sent(h)
			last = h
		}
	}
	if g.held == nil && len(p) == muxHead && last != nil && last.kind == muxData &&
		last.length > 0 && last.length <= joinLimit {
		g.held = append(make([]byte, 0, muxHead+int(last.length)), p...)
		return len(p), nil
	}
	if g.held == nil {
		return g.ReadWriteCloser.Write(p)
	}
	g.held = append(g.held, p...)
	if g.out.body > 0 {
		return len(p), nil // yamux writes a complete body; this handles other callers
	}
	_, err := g.ReadWriteCloser.Write(g.held)
	g.held = nil
	return len(p), err
}

// sent records what this side is about to send.
func (g *linkGuard) sent(h *linkFrame) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.host && h.flags&muxFlagSYN != 0 && h.stream > g.opened {
		g.begin(h.stream)
	}
	s := g.streams[h.stream]
	switch {
	case s == nil:
	case h.kind == muxData:
		s.send -= h.length
	case h.kind == muxWindow:
		s.receive += h.length
	}
}
