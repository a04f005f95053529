// Package websocket carries a byte stream in the binary messages of a WebSocket (RFC 6455): what
// HTTP servers, proxies and browsers let through.
package websocket

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A Stream is a byte stream. One goroutine may read; any goroutine may write.
type Stream struct {
	conn   net.Conn
	frames *wire.Frames
	buf    *[wire.MaxBinary]byte // has a message; nil: there is none
	rest   []byte                // of the message, not read yet
	close  sync.Once
	pings  *time.Timer // nil: the other side pings
}

// farewellTime bounds the writing of a closing frame.
const farewellTime = time.Second

// restTime bounds the wait for the end of the other side of a Unix socket.
const restTime = 100 * time.Millisecond

// pingTime is the time between two pings of a client. Relays and proxies end connections that are
// silent for longer, often after a minute.
const pingTime = 30 * time.Second

// silences is how many pings of a client may have no answer. Then the way to the other side is lost,
// which TCP alone notices after a quarter of an hour.
const silences = 4

// buffered is a connection of which bytes were read before.
type buffered struct {
	net.Conn
	r       *bufio.Reader
	silence time.Duration // longest time in which a Read gets nothing; 0: any
}

func (b *buffered) Read(p []byte) (int, error) {
	if b.r != nil {
		if n := b.r.Buffered(); n > 0 {
			return b.r.Read(p[:min(len(p), n)])
		}
		b.r = nil
	}
	if b.silence == 0 {
		return b.Conn.Read(p)
	}
	if err := b.SetReadDeadline(time.Now().Add(b.silence)); err != nil {
		return 0, err
	}
	n, err := b.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = turnstone.Errorf("websocket.read", turnstone.KindDead, "the connection",
			"the other side answers no ping for %s", b.silence).WithHint("connect again")
	}
	return n, err
}

// newStream returns a stream. A stream that pings ends after some pings without any answer.
func newStream(conn net.Conn, r *bufio.Reader, ping time.Duration) *Stream {
	b := &buffered{Conn: conn, r: r}
	if _, here := conn.(*net.UnixConn); !here { // its other side cannot vanish
		b.silence = silences * ping
	}
	return &Stream{conn: conn, frames: wire.NewFrames(b, ping > 0)}
}

// Protocol is the subprotocol of a stream, which a client may ask for. Browsers do: with a token beside
// it, they need one that the server selects.
const Protocol = "turnstone.v1"

// Accept answers the upgrade of a request; after an error the client has its answer.
func Accept(w http.ResponseWriter, r *http.Request) (*Stream, error) {
	up := ws.HTTPUpgrader{Protocol: func(asked string) bool { return asked == Protocol }}
	conn, rw, _, err := up.Upgrade(r, w)
	if err != nil {
		return nil, turnstone.NewError("websocket.accept", turnstone.KindInvalid, "the request", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil { // those of the HTTP server
		_ = conn.Close()
		return nil, turnstone.NewError("websocket.accept", turnstone.KindDead, "the connection", err)
	}
	return newStream(conn, rw.Reader, 0), nil
}

// A Dialer opens connections below WebSockets.
type Dialer struct {
	// Net dials an address; nil: a net.Dialer.
	Net func(ctx context.Context, network, addr string) (net.Conn, error)
	TLS *tls.Config // of wss: addresses

	ping time.Duration // 0: pingTime
}

// Dial opens a WebSocket at an address ws: or wss: with further header fields. ctx bounds the
// handshake only. The error is of kind Unavailable if nobody answers, and its subject has no
// credentials of the address.
func (d Dialer) Dial(ctx context.Context, address string, header http.Header) (*Stream, error) {
	conn, r, _, err := ws.Dialer{NetDial: d.Net, TLSConfig: d.TLS,
		Header: ws.HandshakeHeaderHTTP(header)}.Dial(ctx, address)
	if err != nil {
		return nil, refused(address, err)
	}
	ping := cmp.Or(d.ping, pingTime)
	s := newStream(conn, r, ping)
	s.keepAlive(ping)
	return s, nil
}

// keepAlive pings again and again until the stream ends.
func (s *Stream) keepAlive(every time.Duration) {
	var once func()
	ready := make(chan struct{})
	once = func() {
		<-ready
		if s.frames.Ping() == nil {
			s.pings.Reset(every)
		}
	}
	s.pings = time.AfterFunc(every, once)
	close(ready)
}

// refused returns the error of a handshake.
func refused(address string, err error) error {
	name := "the server"
	if u, e := url.Parse(address); e == nil {
		name = u.Host
	}
	var status ws.StatusError
	if !errors.As(err, &status) {
		return turnstone.NewError("websocket.dial", turnstone.KindUnavailable, name, err).
			WithHint("check that the server runs and can be reached")
	}
	kind, hint := turnstone.KindUnavailable, "try again"
	switch code := int(status); {
	case code == http.StatusTooManyRequests:
		kind = turnstone.KindExhausted
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		kind, hint = turnstone.KindDenied, "check the token, and what it grants"
	case code == http.StatusNotFound:
		kind, hint = turnstone.KindNotFound, "check the address, and that the object exists"
	case code >= 400 && code < 500:
		kind, hint = turnstone.KindInvalid, "check the token and the server's address"
	}
	return turnstone.Errorf("websocket.dial", kind, name, "answers %d %s", int(status),
		http.StatusText(int(status))).WithHint(hint)
}

// Read implements io.Reader. A closing frame ends the stream, and so does the connection's end
// between messages: only the layer above knows whether all was said.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.rest)
	if s.rest = s.rest[n:]; len(s.rest) == 0 {
		s.release()
	}
	return n, nil
}

// buffers have room for a message. An idle stream holds none.
var buffers = sync.Pool{New: func() any { return new([wire.MaxBinary]byte) }}

// next waits for a message, and reads it into s.rest. Messages may be empty.
func (s *Stream) next() error {
	text, message, err := s.frames.NextIn(s.take)
	if s.rest = message; err == nil && !text && len(message) > 0 {
		return nil
	}
	s.release()
	var closed *wire.ClosedError
	switch {
	case errors.As(err, &closed):
		return io.EOF
	case err == nil && text:
		return &wire.ProtocolError{Code: int(ws.StatusUnsupportedData),
			Reason: "a text message in a stream of bytes"}
	}
	return err
}

// take returns the buffer for a message that begins.
func (s *Stream) take() []byte {
	s.buf = buffers.Get().(*[wire.MaxBinary]byte)
	return s.buf[:]
}

// release returns the buffer of a message that was read.
func (s *Stream) release() {
	if s.buf != nil {
		buffers.Put(s.buf)
		s.buf, s.rest = nil, nil
	}
}

// WriteTo implements io.WriterTo: each message is one Write.
func (s *Stream) WriteTo(w io.Writer) (n int64, err error) {
	for {
		if len(s.rest) > 0 {
			m, err := w.Write(s.rest)
			n += int64(m)
			if s.rest = s.rest[m:]; err != nil {
				return n, err
			}
			s.release()
		}
		if err := s.next(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// Write implements io.Writer. A frame of a channel is one message.
func (s *Stream) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		part := p[done:min(len(p), done+wire.MaxBinary)]
		if err := s.frames.WriteBinary(part); err != nil {
			return done, err
		}
		done += len(part)
	}
	return done, nil
}

// Close sends a closing frame, if the other side takes it soon, and closes the connection.
func (s *Stream) Close() error {
	s.quiet()
	s.close.Do(func() {
		_ = s.conn.SetWriteDeadline(time.Now().Add(farewellTime))
		_ = s.frames.Farewell(nil)
		finish(s.conn)
	})
	return s.conn.Close()
}

// finish ends the writing of a connection by itself: with bytes that nobody has read, Close alone
// would reset it, and to the other side that is no orderly end.
func finish(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		_ = t.CloseWrite() // an alert
		c = t.NetConn()
	}
	w, ok := c.(interface{ CloseWrite() error })
	if !ok || w.CloseWrite() != nil {
		return
	}
	if _, ok := c.(*net.UnixConn); ok { // bytes that nobody has read still reset it
		_ = c.SetReadDeadline(time.Now().Add(restTime))
		_, _ = io.Copy(io.Discard, c)
	}
}

// Abort closes the connection at once.
func (s *Stream) Abort() {
	s.quiet()
	_ = s.conn.Close()
}

// quiet ends the pings. One that is under way fails, because the connection is closed, and sets no
// other one.
func (s *Stream) quiet() {
	if s.pings != nil {
		s.pings.Stop()
	}
}
