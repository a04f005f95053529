package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Frames of yamux (its spec.md): a header of 12 bytes, which are version, type, flags
// (2), stream (4) and length (4); only data has a body, of that length.
const (
	muxHead    = 12
	muxData    = 0
	muxWindow  = 1 // the length is how many bytes more may be sent
	muxFlagSYN = 1
	muxFlagACK = 2
	muxFlagFIN = 4
	muxFlagRST = 8
	muxInitial = 256 << 10 // bytes that a stream begins with a window of
)

// maxEnded is of how many streams that the other side has ended a guard still knows
// what may come: yamux can have data on its way behind a stream's end.
const maxEnded = 1024

// A linkGuard reads along with yamux, and ends the link at the first frame that neither
// side of a link sends. yamux would spend memory on some of them without bound, wait
// for the body of others for ever, and ignore the rest. Only the host opens streams,
// nobody pings or says that it goes away, and nobody sends more than it was granted.
type linkGuard struct {
	io.ReadWriteCloser
	host bool
	in   headReader // used by yamux's reading goroutine
	out  headReader // used by yamux's writing goroutine
	held []byte     // a header that was written, and waits for its body

	mu      sync.Mutex
	streams map[uint32]*muxStream
	ended   []uint32 // streams that the other side has ended, the oldest first
	opened  uint32   // the number of the newest stream
	stop    error    // why nothing more is read
}

// A muxStream is what a guard knows of a stream.
type muxStream struct {
	receive int64 // bytes that may come
	send    int64 // bytes that may be sent
	known   bool  // the agent has acknowledged it
	fin     bool  // the other side sends no more
	ended   bool  // that, or it has given it up
}

// A headReader finds the headers in a link's bytes.
type headReader struct {
	head [muxHead]byte
	have int
	body int64 // bytes of the current frame's body that are still to come
}

// next takes bytes from p up to the end of the next header, which it returns, or all.
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
		stream: binary.BigEndian.Uint32(r.head[4:]), length: int64(binary.BigEndian.Uint32(r.head[8:]))}
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

// Read implements io.Reader. A frame that has no place, and what is behind it, is not
// passed on.
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

// An ender is a stream that is about to end a link in a way of its own: what comes then
// and is no frame is no fault.
type ender interface{ ending() bool }

// err is why the link was ended, if it was for what the other side has sent.
func (g *linkGuard) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop == io.EOF {
		return nil
	}
	return g.stop
}

// admit judges a frame of the other side; nil: what there is of one. Its rest may not
// come, and a call would wait for it.
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
	g.stop = protocolError("the link carried a frame that has no place in it: %s", why)
	if e, ok := g.ReadWriteCloser.(ender); ok && e.ending() {
		g.stop = io.EOF
	}
	return g.stop
}

// judge says what is wrong with a frame of the other side; "": nothing. g.mu is held.
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
		return fmt.Sprintf("it is of stream %d, which nobody has opened", h.stream)
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

// open takes note of a stream that the other side opens. g.mu is held.
func (g *linkGuard) open(h *linkFrame) string {
	if g.host {
		return "it opens a stream"
	}
	if h.stream%2 == 0 || h.stream <= g.opened {
		return fmt.Sprintf("it opens stream %d behind %d", h.stream, g.opened)
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

// count holds a frame of the other side against what it was granted, and what it
// grants against the window. g.mu is held.
func (g *linkGuard) count(h *linkFrame) string {
	s := g.streams[h.stream]
	if s == nil { // it has ended long ago
		if h.kind == muxData || h.length > linkWindow {
			return fmt.Sprintf("it is of stream %d, which has ended", h.stream)
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

// joinLimit is the largest body that is copied behind its header.
const joinLimit = 16 << 10

// Write implements io.Writer. yamux writes a frame's header and its body one after
// the other; together they cost a guest one exit from its machine and not two.
func (g *linkGuard) Write(p []byte) (int, error) {
	var last *linkFrame
	for rest := p; len(rest) > 0; {
		var h *linkFrame
		if rest, h = g.out.next(rest); h != nil {
			g.sent(h)
			last = h
		}
	}
	if g.held == nil && len(p) == muxHead && last != nil && last.kind == muxData && last.length > 0 && last.length <= joinLimit {
		g.held = append(make([]byte, 0, muxHead+int(last.length)), p...)
		return len(p), nil
	}
	if g.held == nil {
		return g.ReadWriteCloser.Write(p)
	}
	g.held = append(g.held, p...)
	if g.out.body > 0 {
		return len(p), nil // yamux writes a body whole; this is for one that does not
	}
	_, err := g.ReadWriteCloser.Write(g.held)
	g.held = nil
	return len(p), err
}

// sent takes note of what this side is about to send.
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
