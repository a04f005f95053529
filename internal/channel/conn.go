package channel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone"
)

// farewell bounds how long Close waits for the other side to take the end, and how long a side that
// reports a manipulation waits for the other side to leave.
const farewell = 2 * time.Second

// subject is the subject of errors.
const subject = "the channel"

// frames are buffers of the largest frame, held only while a frame is worked on.
var frames = sync.Pool{New: func() any { return new([maxFrame]byte) }}

// A Conn is an encrypted byte stream with an authenticated end. One goroutine may read while
// others write; writes do not mix. A Conn has no goroutine and no queue: Write blocks while its
// stream does.
type Conn struct {
	stream     io.ReadWriteCloser
	peer       PublicKey
	statement  turnstone.Digest
	send, recv *half

	// failed is the first fault. A Conn with a fault neither reads nor writes.
	failed atomic.Pointer[turnstone.Error]
	closed atomic.Bool

	rmu  sync.Mutex
	in   *bufio.Reader
	buf  *[maxFrame]byte // holds plain; nil: there is none
	rest []byte          // plaintext that was not read yet
	rerr error           // why reading has ended

	wmu  sync.Mutex
	werr error // why writing has ended
}

func newConn(stream io.ReadWriteCloser, in *bufio.Reader, send, recv *half) *Conn {
	return &Conn{stream: stream, in: in, send: send, recv: recv}
}

// Peer returns the key that the other side proved.
func (c *Conn) Peer() PublicKey { return c.peer }

// Statement returns the digest of the statement that the handshake was bound to.
func (c *Conn) Statement() turnstone.Digest { return c.statement }

// Read reads data. It returns io.EOF only after the authenticated end of the other side. Errors of
// a manipulated or broken stream have a Fault, and stay.
func (c *Conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for len(c.rest) == 0 {
		if c.rerr != nil {
			return 0, c.rerr
		}
		switch kind, err := c.next(); {
		case err != nil:
			c.rerr = err
		case kind == kindEnd && len(c.rest) == 0:
			c.rerr = io.EOF
		case kind == kindFault && reportable(Fault(c.rest)):
			c.rerr = c.fail(Fail("channel.read", Fault(c.rest), subject,
				"the other side received something else than this side sent"))
			c.rest = nil
		case kind != kindData || len(c.rest) == 0:
			c.rest = nil
			c.rerr = c.fail(turnstone.Errorf("channel.read", turnstone.KindInvalid, subject,
				"the other side sent a frame that has no meaning here (kind %d)", kind))
		}
		if len(c.rest) == 0 {
			c.release()
		}
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.release()
	}
	return n, nil
}

// release returns the buffer of a frame that was read. c.rmu is held.
func (c *Conn) release() {
	if c.buf != nil {
		frames.Put(c.buf)
		c.buf, c.rest = nil, nil
	}
}

// next reads and decrypts a frame, and leaves its data in c.rest. c.rmu is held.
func (c *Conn) next() (kind byte, err error) {
	var head [headSize]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return 0, c.ended(err)
	}
	size, number := int(binary.BigEndian.Uint16(head[:])), binary.BigEndian.Uint64(head[2:])
	if size < minNoise {
		return 0, c.report(Fail("channel.read", FaultAltered, subject,
			"a frame of %d bytes is too short", size))
	}
	sealed := frames.Get().(*[maxFrame]byte)
	defer frames.Put(sealed)
	if _, err := io.ReadFull(c.in, sealed[:size]); err != nil {
		return 0, c.ended(err)
	}
	if due := c.recv.due(); number != due {
		return 0, c.report(c.name(number, due, sealed[:size]))
	}
	// The ciphertext stays as it is: a failed decryption erases its destination.
	c.buf = frames.Get().(*[maxFrame]byte)
	plain, err := c.recv.open(c.buf[:0], sealed[:size])
	if err != nil {
		c.release()
		return 0, c.report(c.name(number, number, sealed[:size]))
	}
	c.rest = plain[1:]
	return plain[0], nil
}

// name says what was done to a frame that is not the one that is due.
func (c *Conn) name(number, due uint64, sealed []byte) *turnstone.Error {
	fail := func(f Fault, format string, args ...any) *turnstone.Error {
		return Fail("channel.read", f, subject, format, args...)
	}
	switch {
	case number < due && c.recv.made(number, sealed):
		return fail(FaultRepeated, "frame %d came again where frame %d was due", number, due)
	case number > due && c.recv.made(number, sealed):
		return fail(FaultReordered, "frame %d came where frame %d was due", number, due)
	case c.send.made(number, sealed):
		return fail(FaultReflected, "frame %d of this side came back", number)
	}
	return fail(FaultAltered, "frame %d is not what the other side sent", due)
}

// ended returns the error of a stream that ended within or between frames.
func (c *Conn) ended(err error) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return c.fail(Fail("channel.read", FaultTruncated, subject,
		"the stream ended without the end of the other side: %w", err))
}

// fail ends the stream because of err, and returns the first error of the Conn.
func (c *Conn) fail(err *turnstone.Error) error {
	c.failed.CompareAndSwap(nil, err)
	abort(c.stream)
	return c.failed.Load()
}

// report is fail for a manipulation, whose name it sends to the other side first. The other side
// would otherwise see the end of a stream, which it takes for a failing network. What still arrives
// is discarded: a stream that is closed with unread bytes may lose what was written to it.
func (c *Conn) report(err *turnstone.Error) error {
	if c.failed.CompareAndSwap(nil, err) {
		late := time.AfterFunc(farewell, func() { abort(c.stream) })
		defer late.Stop()
		c.wmu.Lock()
		sent := c.werr == nil && c.put(kindFault, []byte(FaultOf(err))) == nil
		c.wmu.Unlock()
		if sent {
			_, _ = io.Copy(io.Discard, c.in)
		}
	}
	return c.fail(err)
}

// Write writes p in as many frames as it needs, and blocks while the stream blocks.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for len(p) > 0 {
		part := p[:min(len(p), maxData)]
		if err := c.frame(kindData, part); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, c.werr
}

// CloseWrite tells the other side that no data follows. Reading goes on.
func (c *Conn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if errors.Is(c.werr, net.ErrClosed) {
		return nil
	}
	err := c.frame(kindEnd, nil)
	if err == nil {
		c.werr = net.ErrClosed
	}
	return err
}

// frame seals and writes a frame. c.wmu is held.
func (c *Conn) frame(kind byte, data []byte) error {
	if c.werr != nil {
		return c.werr
	}
	if err := c.failed.Load(); err != nil {
		return err
	}
	return c.put(kind, data)
}

// put is frame, also after a fault. c.wmu is held.
func (c *Conn) put(kind byte, data []byte) error {
	buf := frames.Get().(*[maxFrame]byte)
	defer frames.Put(buf)
	plain := append(append(buf[headSize:headSize], kind), data...)
	sealed, number, err := c.send.seal(buf[headSize:headSize], plain)
	if err != nil {
		c.werr = turnstone.NewError("channel.write", turnstone.KindInternal, subject, err)
		return c.werr
	}
	binary.BigEndian.PutUint16(buf[:], uint16(len(sealed)))
	binary.BigEndian.PutUint64(buf[2:], number)
	if _, err := c.stream.Write(buf[:headSize+len(sealed)]); err != nil {
		// A part of a frame may have been written: nothing can follow it. Whether a side that loses
		// its stream reads the end or cannot write first is chance: the name is the same.
		c.werr = Fail("channel.write", FaultTruncated, subject,
			"the stream ended without the end of the other side: %w", err)
		if first := c.failed.Load(); first != nil {
			c.werr = first
		}
		return c.werr
	}
	return nil
}

// Close sends the end if the other side takes it soon, and closes the stream. It may be called at
// any time, and again.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	late := time.AfterFunc(farewell, func() { abort(c.stream) })
	_ = c.CloseWrite() // the other side may be gone
	late.Stop()
	return c.stream.Close()
}

// abort closes a stream so that blocked calls return. The Close of a link's stream ends its writing
// only.
func abort(s io.Closer) {
	if a, ok := s.(interface{ Abort() }); ok {
		a.Abort()
		return
	}
	_ = s.Close()
}
