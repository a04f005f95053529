package websocket

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A tape is a connection whose other side says what is recorded, in pieces of a size.
type tape struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
	max int // of a read; 0: as large as asked for
}

func (c *tape) Read(p []byte) (int, error) {
	if c.max > 0 && len(p) > c.max {
		p = p[:c.max]
	}
	return c.in.Read(p)
}

func (c *tape) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *tape) Close() error                     { return nil }
func (c *tape) SetDeadline(time.Time) error      { return nil }
func (c *tape) SetReadDeadline(time.Time) error  { return nil }
func (c *tape) SetWriteDeadline(time.Time) error { return nil }

// frames returns a client's frames.
func frames(all ...ws.Frame) []byte {
	var b bytes.Buffer
	for _, f := range all {
		_ = ws.WriteFrame(&b, ws.MaskFrameInPlaceWith(f, [4]byte{1, 2, 3, 4}))
	}
	return b.Bytes()
}

// FuzzStream reads what a client sends. The stream is the same in whatever pieces it arrives.
func FuzzStream(f *testing.F) {
	f.Add(frames(ws.NewBinaryFrame([]byte("hello")), ws.NewPingFrame([]byte("?")),
		ws.NewBinaryFrame([]byte("world")), ws.NewCloseFrame(nil)))
	f.Add(frames(ws.NewFrame(ws.OpBinary, false, []byte("a")),
		ws.NewFrame(ws.OpContinuation, false, []byte("b"))))
	f.Add(frames(ws.NewTextFrame([]byte("text"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		read := func(most int) (string, error) {
			s := newStream(&tape{in: bytes.NewReader(b), max: most},
				bufio.NewReader(strings.NewReader("")), 0)
			all, err := io.ReadAll(io.LimitReader(s, int64(len(b))+1))
			_ = s.Close()
			return string(all), err
		}
		all, err := read(0)
		if len(all) > len(b) {
			t.Fatalf("%d bytes from %d", len(all), len(b))
		}
		again, err2 := read(1)
		if all != again || (err == nil) != (err2 == nil) {
			t.Fatalf("%q, %v; byte by byte %q, %v", all, err, again, err2)
		}
		var broken *wire.ProtocolError
		if err != nil && !errors.As(err, &broken) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%T %v", err, err)
		}
	})
}

// A hijacked is the answer to a request, whose connection is a tape.
type hijacked struct {
	*httptest.ResponseRecorder
	conn *tape
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

const upgrade = "GET /x HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"

// FuzzAccept answers requests: what is accepted is an upgrade, and no other request is.
func FuzzAccept(f *testing.F) {
	f.Add(upgrade + "\r\n")
	f.Add(upgrade + "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: a, b\r\n\r\n")
	f.Add("POST / HTTP/1.1\r\nHost: h\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		w := hijacked{httptest.NewRecorder(), &tape{in: strings.NewReader("")}}
		s, err := Accept(w, r)
		if err != nil {
			if turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Fatal(err)
			}
			return
		}
		answer, err := http.ReadResponse(bufio.NewReader(&w.conn.out), r)
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols || r.Method != "GET" ||
			!strings.EqualFold(r.Header.Get("Upgrade"), "websocket") ||
			answer.Header.Get("Sec-WebSocket-Extensions") != "" {
			t.Fatalf("%q: %+v, %v", text, answer, err)
		}
		_ = s.Close()
	})
}

// answering is a tape whose answer may have the word ACCEPT for the key that the request asks for.
type answering struct {
	tape
	answer string
}

func (c *answering) Read(p []byte) (int, error) {
	if c.in == nil {
		key := ""
		if r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(c.out.Bytes()))); err == nil {
			key = r.Header.Get("Sec-WebSocket-Key")
		}
		sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		c.in = strings.NewReader(strings.ReplaceAll(c.answer, "ACCEPT",
			base64.StdEncoding.EncodeToString(sum[:])))
	}
	return c.in.Read(p)
}

// FuzzDial reads a server's answer to an upgrade: the error has a kind and no credentials, and
// without an error the answer had the key.
func FuzzDial(f *testing.F) {
	f.Add("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: ACCEPT\r\n\r\n\x82\x02hi")
	f.Add("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\nno")
	f.Add("HTTP/1.1 101 Switching Protocols\r\n\r\n")
	f.Fuzz(func(t *testing.T, answer string) {
		d := Dialer{Net: func(context.Context, string, string) (net.Conn, error) {
			return &answering{answer: answer}, nil
		}, ping: time.Hour}
		s, err := d.Dial(t.Context(), "ws://user:geheim@h/?token=geheim", nil)
		if err == nil {
			defer s.Abort()
			if !strings.Contains(answer, "ACCEPT") {
				t.Fatalf("%q is taken for an upgrade", answer)
			}
			if all, _ := io.ReadAll(s); len(all) > len(answer)+28 {
				t.Fatalf("%d bytes", len(all))
			}
			return
		}
		switch turnstone.KindOf(err) {
		case turnstone.KindUnavailable, turnstone.KindExhausted, turnstone.KindNotFound,
			turnstone.KindInvalid:
		default:
			t.Fatalf("%s %v", turnstone.KindOf(err), err)
		}
		if strings.Contains(err.Error(), "geheim") && !strings.Contains(answer, "geheim") {
			t.Fatal(err)
		}
	})
}
