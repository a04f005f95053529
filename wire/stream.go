package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"turnstone.dev/turnstone"
)

// A StreamID is the number of a stream on its connection. Zero means no stream.
type StreamID uint32

// streamWindow bounds the bytes in transit that the reader has not taken, and with it the memory
// that an idle reader costs its side.
const streamWindow = 1 << 20

// Limits of a connection. Data that was received and not read occupies memory on the receiving
// side, up to a window per stream.
const (
	maxSend    = 256
	maxReceive = 32
)

// shareBelow is the minimum size of a receiver's buffer in bytes.
const shareBelow = 4 << 10

// Kinds of binary frame.
const (
	frameData   = 0 // bytes from an offset on
	frameEnd    = 1 // the stream's end; the offset is its length
	frameCredit = 2 // from the reader: bytes up to the offset may be sent
	frameReset  = 3 // from either side: the stream is aborted; the data is the reason
)

// A Frame is a decoded binary frame.
type Frame struct {
	Kind    byte
	Channel uint32 // the flat session; 0: none
	Stream  StreamID
	Offset  uint64
	Data    []byte
}

// ParseFrame decodes a binary message. Data aliases p.
func ParseFrame(p []byte) (Frame, error) {
	if len(p) < frameHead {
		return Frame{}, protocolError("a binary frame is shorter than its header of %d bytes",
			frameHead)
	}
	f := Frame{Kind: p[0], Channel: binary.BigEndian.Uint32(p[1:]),
		Stream: StreamID(binary.BigEndian.Uint32(p[5:])),
		Offset: binary.BigEndian.Uint64(p[9:]), Data: p[frameHead:]}
	switch {
	case f.Kind > frameReset:
		return f, protocolError("a binary frame has the unknown kind %d", f.Kind)
	case f.Stream == 0:
		return f, protocolError("a binary frame names no stream")
	case f.Offset > 1<<62:
		return f, protocolError("a binary frame's offset is out of range")
	case f.Kind != frameData && f.Kind != frameReset && len(f.Data) > 0:
		return f, protocolError("a binary frame of kind %d carries data", f.Kind)
	}
	return f, nil
}

// Head returns the frame's header, which precedes its data.
func (f Frame) Head() []byte {
	h := make([]byte, frameHead)
	h[0] = f.Kind
	binary.BigEndian.PutUint32(h[1:], f.Channel)
	binary.BigEndian.PutUint32(h[5:], uint32(f.Stream))
	binary.BigEndian.PutUint64(h[9:], f.Offset)
	return h
}

// ErrReset is in the chain of a stream's error when the other side aborted the stream.
var ErrReset = errors.New("the other side aborted the stream")

// A Receiver is the reading end of a stream. Only one goroutine may read.
type Receiver struct {
	c  *Conn
	id StreamID

	mu      sync.Mutex
	ready   sync.Cond
	queue   [][]byte // received and unread data
	got     uint64   // bytes received
	read    uint64   // bytes read
	credit  uint64   // bytes that the sender may send
	err     error    // why no more data arrives; io.EOF at the stream's end
	dropped bool     // the Receiver was closed: data is dropped
}

func newReceiver(c *Conn, id StreamID) *Receiver {
	r := &Receiver{c: c, id: id, credit: streamWindow}
	r.ready.L = &r.mu
	return r
}

// Read implements io.Reader. It returns io.EOF at the stream's end, an error with ErrReset when the
// sender aborted the stream, and an error of kind KindDead when the connection ended.
func (r *Receiver) Read(p []byte) (int, error) {
	r.mu.Lock()
	for len(r.queue) == 0 && r.err == nil {
		r.ready.Wait()
	}
	if len(r.queue) == 0 {
		defer r.mu.Unlock()
		return 0, r.err
	}
	n := copy(p, r.queue[0])
	if n == len(r.queue[0]) {
		r.queue[0] = nil
		r.queue = r.queue[1:]
	} else {
		r.queue[0] = r.queue[0][n:]
	}
	r.read += uint64(n)
	grant := uint64(0)
	if r.err == nil && r.credit-r.read <= streamWindow/2 {
		r.credit = r.read + streamWindow
		grant = r.credit
	}
	r.mu.Unlock()
	if grant > 0 {
		// if this fails, the next read fails too
		_ = r.c.writeFrame(Frame{Kind: frameCredit, Stream: r.id, Offset: grant})
	}
	return n, nil
}

// Close aborts the stream if it has not ended. Any goroutine may call Close at any time.
func (r *Receiver) Close() error {
	r.mu.Lock()
	live := r.err == nil && !r.dropped
	r.dropped = true
	r.queue = nil
	if r.err == nil {
		r.err = io.ErrClosedPipe
	}
	r.ready.Broadcast()
	r.mu.Unlock()
	if live {
		return r.c.writeFrame(Frame{Kind: frameReset, Stream: r.id})
	}
	return nil
}

// frame processes a received frame. The connection's reading goroutine calls it.
func (r *Receiver) frame(f Frame) (ended bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.ready.Broadcast()
	switch f.Kind {
	case frameData:
		if f.Offset != r.got {
			return false, protocolError("stream %d continues at byte %d, not %d", r.id,
				f.Offset, r.got)
		}
		if f.Offset+uint64(len(f.Data)) > r.credit {
			return false, protocolError("stream %d exceeds its credit", r.id)
		}
		r.got += uint64(len(f.Data))
		if !r.dropped && len(f.Data) > 0 {
			r.keep(f.Data)
		}
		return false, nil
	case frameEnd:
		if f.Offset != r.got {
			return false, protocolError("stream %d ends at byte %d, not %d", r.id, f.Offset, r.got)
		}
		if r.err == nil {
			r.err = io.EOF
		}
	default:
		if r.err == nil {
			r.err = resetError(f.Data)
		}
	}
	return true, nil
}

// keep appends a copy of b to the received data. Small frames share a buffer, so that each frame
// costs its own size and not a buffer of its own.
func (r *Receiver) keep(b []byte) {
	if n := len(r.queue); n > 0 && cap(r.queue[n-1])-len(r.queue[n-1]) >= len(b) {
		r.queue[n-1] = append(r.queue[n-1], b...)
		return
	}
	r.queue = append(r.queue, append(make([]byte, 0, max(len(b), shareBelow)), b...))
}

func (r *Receiver) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	r.ready.Broadcast()
}

// A Sender is the writing end of a stream. Only one goroutine may write; Close and Abort may be
// called from others.
type Sender struct {
	c  *Conn
	id StreamID

	mu    sync.Mutex
	ready sync.Cond
	sent  uint64
	limit uint64
	err   error // why sending has ended
	ended bool
	held  bool   // the command that names the stream was not sent yet
	given *Frame // the frame that ends the stream as soon as it begins
}

func newSender(c *Conn, id StreamID) *Sender {
	s := &Sender{c: c, id: id, limit: streamWindow}
	s.ready.L = &s.mu
	return s
}

// Write implements io.Writer. It waits for the reader. Its error has ErrReset in its chain when the
// reader aborted the stream, and is of kind KindDead when the connection ended.
func (s *Sender) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		s.mu.Lock()
		for s.err == nil && (s.held || s.sent >= s.limit) {
			s.ready.Wait()
		}
		if s.err != nil {
			defer s.mu.Unlock()
			return done, s.err
		}
		n := min(uint64(len(p)-done), s.limit-s.sent, SendChunk)
		f := Frame{Kind: frameData, Stream: s.id, Offset: s.sent, Data: p[done : done+int(n)]}
		s.sent += n
		s.mu.Unlock()
		if err := s.c.writeFrame(f); err != nil {
			return done, err
		}
		done += int(n)
	}
	return done, nil
}

// release starts a stream after the command that names it was sent.
func (s *Sender) release() {
	s.mu.Lock()
	s.held = false
	given := s.given
	s.ready.Broadcast()
	s.mu.Unlock()
	if given != nil { // aborted before its begin: the other side waits for the end
		s.c.dropSender(s.id)
		_ = s.c.writeFrame(*given)
	}
}

// Close ends the stream.
func (s *Sender) Close() error { return s.end(Frame{Kind: frameEnd}, io.ErrClosedPipe) }

// Abort aborts the stream with a reason. A waiting Write returns.
func (s *Sender) Abort(why error) {
	reason := ""
	if why != nil {
		reason = clip(s.c.shown(why).Error(), 1000)
	}
	_ = s.end(Frame{Kind: frameReset, Data: []byte(reason)}, io.ErrClosedPipe)
}

// Until aborts the stream when ctx ends.
func (s *Sender) Until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { s.Abort(context.Cause(ctx)) })
}

func (s *Sender) end(f Frame, local error) error {
	s.mu.Lock()
	if s.ended {
		defer s.mu.Unlock()
		return nil
	}
	for s.held && s.err == nil && f.Kind == frameEnd {
		s.ready.Wait()
	}
	s.ended = true
	if s.err == nil {
		s.err = local
	}
	f.Stream, f.Offset = s.id, s.sent
	if f.Kind == frameReset {
		f.Offset = 0
	}
	s.ready.Broadcast()
	if s.held { // the other side does not know the stream yet
		s.given = &f
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	s.c.dropSender(s.id)
	return s.c.writeFrame(f)
}

// frame processes a frame of the reader. A reader that aborted the stream gets a reset in return,
// which tells the reader that no data is in transit.
func (s *Sender) frame(f Frame) (err error) {
	if f.Kind == frameReset {
		s.fail(resetError(f.Data))
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Offset > s.sent+streamWindow {
		return protocolError("stream %d is granted %d bytes, and %d were sent", s.id,
			f.Offset, s.sent)
	}
	if f.Offset > s.limit {
		s.limit = f.Offset
		s.ready.Broadcast()
	}
	return nil
}

func (s *Sender) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.ready.Broadcast()
}

func resetError(why []byte) error {
	te := turnstone.NewError("wire.stream", turnstone.KindCanceled, "", ErrReset)
	if len(why) > 0 {
		te.Subject = clip(string(why), 1000)
	}
	return te
}
