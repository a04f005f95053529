package wire

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// Limits for data from the other side.
const (
	MaxMessage = 16 << 20 // bytes of one JSON message
	MaxChunk   = 64 << 10 // bytes of data in one binary frame
	MaxDepth   = 64       // nesting depth of a JSON message
	MaxValues  = 1 << 18  // values in a JSON message
	frameHead  = 17       // bytes before the data in a binary frame
	maxReason  = 123      // bytes of text in a closing frame (RFC 6455, 5.5)
	maxControl = 125      // bytes of a control frame
	chunkLimit = frameHead + MaxChunk
	maxParts   = 1 << 16 // frames of a message: empty ones would never reach its limit of bytes

	// SendChunk is the data in bytes that this package sends in a binary frame. With its headers it
	// fits into one frame of an encrypted channel, which has at most 65,535 bytes: 64 KiB would take
	// two of them.
	SendChunk = 60 << 10
	// MaxBinary is the largest binary message that Next takes, in bytes.
	MaxBinary = chunkLimit
)

// A ProtocolError is the reason for ending a connection after a protocol violation by the other
// side. Code is a status of RFC 6455, 7.4.1.
type ProtocolError struct {
	Code   int
	Reason string
}

func (e *ProtocolError) Error() string { return e.Reason }

func protocolError(format string, args ...any) error {
	return &ProtocolError{Code: int(ws.StatusProtocolError), Reason: fmt.Sprintf(format, args...)}
}

// A ClosedError reports how the other side ended a connection.
type ClosedError struct {
	Code   int
	Reason string
}

// Error returns the reason of the other side, or the code of the closing frame (RFC 6455, section
// 7.4) if no reason was sent.
func (e *ClosedError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("the other side closed the connection (%d)", e.Code)
	}
	return "the other side closed the connection: " + e.Reason
}

// Frames reads and writes the messages of a connection: RFC 6455 frames over any byte stream, after
// the handshake if there is one. A single goroutine may read; any goroutine may write.
type Frames struct {
	stream io.ReadWriteCloser
	r      *bufio.Reader
	masked bool // this side masks its frames

	wmu    sync.Mutex
	wbuf   []byte
	closed error // why writing has ended, such as a closing frame; guarded by wmu
}

// NewFrames returns the frames of stream. The Frames then own stream. A WebSocket client has to
// mask its frames.
func NewFrames(stream io.ReadWriteCloser, masked bool) *Frames {
	return &Frames{stream: stream, r: bufio.NewReaderSize(stream, 32<<10), masked: masked}
}

// Next returns the next message, text or binary, in buf if it fits. A message that violates a rule
// results in a *ProtocolError, a closing frame in a *ClosedError, and an end without a closing
// frame in io.EOF.
func (f *Frames) Next(buf []byte) (text bool, payload []byte, err error) {
	return f.NextIn(func() []byte { return buf })
}

// NextIn is Next with a buffer that is taken when a message begins, and not while nothing arrives.
func (f *Frames) NextIn(take func() []byte) (text bool, payload []byte, err error) {
	var kind ws.OpCode
	for parts := 0; ; {
		h, err := ws.ReadHeader(f.r)
		if err != nil {
			return false, nil, f.readError(err, kind != 0)
		}
		if err := checkHeader(h, kind != 0); err != nil {
			return false, nil, err
		}
		if h.OpCode.IsControl() {
			if err := f.control(h); err != nil {
				return false, nil, err
			}
			continue
		}
		if h.OpCode != ws.OpContinuation {
			kind, payload = h.OpCode, take()[:0]
		}
		limit := int64(MaxMessage)
		if kind == ws.OpBinary {
			limit = chunkLimit
		}
		if parts++; h.Length > limit-int64(len(payload)) || parts > maxParts {
			return false, nil, &ProtocolError{Code: int(ws.StatusMessageTooBig),
				Reason: fmt.Sprintf("a message is longer than %d bytes or %d frames", limit,
					maxParts)}
		}
		if payload, err = f.body(payload, h); err != nil {
			return false, nil, f.readError(err, true)
		}
		if h.Fin {
			return kind == ws.OpText, payload, nil
		}
	}
}

// body appends a frame's payload to p. p grows with the received bytes, not with the length in the
// header.
func (f *Frames) body(p []byte, h ws.Header) ([]byte, error) {
	begin := len(p)
	for left := h.Length; left > 0; {
		n := int(min(left, 64<<10))
		at := len(p)
		if cap(p)-at < n {
			p = append(p, make([]byte, n)...)
		} else {
			p = p[:at+n]
		}
		if _, err := io.ReadFull(f.r, p[at:]); err != nil {
			return nil, err
		}
		left -= int64(n)
	}
	if h.Masked {
		ws.Cipher(p[begin:], h.Mask, 0)
	}
	return p, nil
}

func checkHeader(h ws.Header, within bool) error {
	switch {
	case h.Rsv != 0:
		return protocolError("a frame uses an extension that was not negotiated")
	case h.OpCode.IsReserved():
		return protocolError("a frame has the unknown opcode %d", h.OpCode)
	case h.OpCode.IsControl() && (!h.Fin || h.Length > maxControl):
		return protocolError("a control frame is fragmented or longer than %d bytes", maxControl)
	case h.OpCode == ws.OpContinuation && !within:
		return protocolError("a continuation frame without a message")
	case h.OpCode.IsData() && h.OpCode != ws.OpContinuation && within:
		return protocolError("a message begins inside another message")
	}
	return nil
}

// control answers a ping and decodes a closing frame.
func (f *Frames) control(h ws.Header) error {
	p, err := f.body(nil, h)
	if err != nil {
		return f.readError(err, true)
	}
	switch h.OpCode {
	case ws.OpPing:
		return f.write(ws.OpPong, p)
	case ws.OpClose:
		closed := &ClosedError{Code: int(ws.StatusNoStatusRcvd)}
		if len(p) >= 2 {
			closed.Code, closed.Reason = int(binary.BigEndian.Uint16(p)),
				clip(string(p[2:]), maxReason)
		}
		return closed
	}
	return nil
}

func (f *Frames) readError(err error, within bool) error {
	if within && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if errors.Is(err, ws.ErrHeaderLengthMSB) || errors.Is(err, ws.ErrHeaderLengthUnexpected) {
		return protocolError("a frame's length is malformed")
	}
	return err
}

// Ping asks the other side for a sign of life, which Next takes.
func (f *Frames) Ping() error { return f.write(ws.OpPing, nil) }

// WriteText writes one JSON message.
func (f *Frames) WriteText(p []byte) error {
	if len(p) > MaxMessage {
		return fmt.Errorf("a message of %d bytes is longer than the protocol allows", len(p))
	}
	return f.write(ws.OpText, p)
}

// WriteBinary writes a binary frame, given in parts.
func (f *Frames) WriteBinary(parts ...[]byte) error { return f.write(ws.OpBinary, parts...) }

func (f *Frames) write(op ws.OpCode, parts ...[]byte) error {
	return f.writeLast(nil, op, parts...)
}

// writeLast writes a frame with a single Write, so that the stream below also uses a single frame.
// If last is not nil, every later write fails with last.
func (f *Frames) writeLast(last error, op ws.OpCode, parts ...[]byte) error {
	h := ws.Header{Fin: true, OpCode: op, Masked: f.masked}
	for _, p := range parts {
		h.Length += int64(len(p))
	}
	if f.masked {
		_, _ = rand.Read(h.Mask[:]) // documented never to fail
	}
	f.wmu.Lock()
	defer f.wmu.Unlock()
	if f.closed != nil {
		return f.closed
	}
	f.closed = last
	b := (*headerBuffer)(&f.wbuf)
	*b = (*b)[:0]
	if err := ws.WriteHeader(b, h); err != nil {
		return err
	}
	begin := len(*b)
	for _, p := range parts {
		*b = append(*b, p...)
	}
	if f.masked {
		ws.Cipher((*b)[begin:], h.Mask, 0)
	}
	_, err := f.stream.Write(*b)
	if cap(*b) > 4*MaxChunk {
		*b = nil // do not keep the buffer of a rare large message
	}
	return err
}

type headerBuffer []byte

func (b *headerBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// Farewell writes a closing frame. err is the reason; nil means a normal end. Farewell blocks as
// any write does. Later writes fail with the same reason.
func (f *Frames) Farewell(err error) error {
	code, reason, last := int(ws.StatusNormalClosure), "", io.ErrClosedPipe
	var broken *ProtocolError
	switch {
	case errors.As(err, &broken):
		code, reason, last = broken.Code, broken.Reason, err
	case err != nil:
		code, reason = int(ws.StatusInternalServerError), err.Error()
	}
	for len(reason) > maxReason {
		_, n := utf8.DecodeLastRuneInString(reason)
		reason = reason[:len(reason)-n]
	}
	return f.writeLast(last, ws.OpClose, ws.NewCloseFrameBody(ws.StatusCode(code), reason))
}

// Close closes the stream without a closing frame.
func (f *Frames) Close() error { return f.stream.Close() }
