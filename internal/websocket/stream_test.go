package websocket

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// serve starts a server whose WebSockets f gets, and returns its address.
func serve(t *testing.T, f func(*Stream)) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Accept(w, r)
		if err != nil {
			return
		}
		f(c)
	}))
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

func TestEcho(t *testing.T) {
	done := make(chan struct{})
	at := serve(t, func(s *Stream) {
		defer close(done)
		defer func() { _ = s.Close() }()
		_, _ = io.Copy(s, s)
	})
	c, err := Dialer{}.Dial(t.Context(), at, nil)
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 3*wire.MaxChunk+17)
	_, _ = rand.Read(sent)
	go func() { _, _ = c.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatal(err)
	}
	_ = c.Close()
	<-done
}

// TestMessages: what a frame of a channel needs is one message, and copying a stream out of its
// messages makes one write of each.
func TestMessages(t *testing.T) {
	sizes := make(chan []int, 1)
	at := serve(t, func(s *Stream) {
		defer s.Abort()
		var w writes
		n, err := io.Copy(&w, s)
		if err != nil || n != 2*wire.MaxBinary+1 {
			t.Error(n, err)
		}
		sizes <- w
	})
	c, err := Dialer{}.Dial(t.Context(), at, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write(make([]byte, wire.MaxBinary))
	_, _ = c.Write(make([]byte, wire.MaxBinary+1))
	_ = c.Close()
	if got := <-sizes; !slices.Equal(got, []int{wire.MaxBinary, wire.MaxBinary, 1}) {
		t.Error(got)
	}
}

// writes are the sizes of writes.
type writes []int

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, len(p))
	return len(p), nil
}

// TestEnds reads to the end of the other side, whatever kind it is.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(*Stream){"close": func(s *Stream) { _ = s.Close() },
		"abort": (*Stream).Abort} {
		at := serve(t, func(s *Stream) { _, _ = s.Write([]byte("x")); end(s) })
		c, err := Dialer{}.Dial(t.Context(), at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := io.ReadAll(c); string(all) != "x" || err != nil {
			t.Errorf("%s: %q %v", name, all, err)
		}
		_ = c.Close()
	}
}

// TestCloseUnread: Close ends the stream in order, also with bytes that nobody has read.
func TestCloseUnread(t *testing.T) {
	sent, result := make(chan struct{}), make(chan error, 1)
	at := serve(t, func(s *Stream) {
		defer s.Abort()
		b := make([]byte, 100)
		_, _ = s.Read(b[:1]) // the handshake is over, and reads nothing of what follows
		_, _ = s.Write(make([]byte, 1000))
		close(sent)
		for {
			// below the frames, where only the connection's own end is one
			if _, err := s.conn.Read(b); err != nil {
				result <- err
				return
			}
		}
	})
	c, err := Dialer{}.Dial(t.Context(), at, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("?"))
	<-sent
	var one [1]byte // the rest has arrived, and stays in the connection
	if _, err := io.ReadFull(c.conn, one[:]); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := <-result; !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// TestHostile ends a stream whose other side breaks the rules.
func TestHostile(t *testing.T) {
	for name, send := range map[string]func(net.Conn){
		"text": func(c net.Conn) { _ = wsutil.WriteClientText(c, []byte("hello")) },
		"large": func(c net.Conn) {
			_ = ws.WriteHeader(c, ws.Header{Fin: true, OpCode: ws.OpBinary, Masked: true,
				Length: 1 << 40})
		},
		"fragments": func(c net.Conn) {
			op := ws.OpBinary
			for {
				f := ws.MaskFrame(ws.NewFrame(op, false, make([]byte, 1000)))
				if ws.WriteFrame(c, f) != nil {
					return
				}
				op = ws.OpContinuation
			}
		},
		"random": func(c net.Conn) { _, _ = io.CopyN(c, rand.Reader, 1000) },
		"half":   func(c net.Conn) { _, _ = c.Write([]byte{0x82, 0xff, 0}); _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			result := make(chan error, 1)
			at := serve(t, func(s *Stream) {
				defer s.Abort()
				_, err := io.Copy(io.Discard, s)
				result <- err
			})
			conn, _, _, err := ws.Dial(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			go send(conn)
			if err := <-result; err == nil && name != "random" {
				t.Error("no error")
			}
			_ = conn.Close()
		})
	}
}

// TestPings answers pings between parts of the stream.
func TestPings(t *testing.T) {
	got := make(chan string, 1)
	at := serve(t, func(s *Stream) {
		defer s.Abort()
		b := make([]byte, 4)
		_, _ = io.ReadFull(s, b)
		got <- string(b)
	})
	conn, _, _, err := ws.Dial(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = wsutil.WriteClientBinary(conn, []byte("ab"))
	_ = wsutil.WriteClientMessage(conn, ws.OpPing, []byte("?"))
	_ = wsutil.WriteClientBinary(conn, nil)
	_ = wsutil.WriteClientBinary(conn, []byte("cd"))
	if f, err := ws.ReadFrame(conn); err != nil || f.Header.OpCode != ws.OpPong ||
		string(f.Payload) != "?" {
		t.Fatalf("%+v %v", f, err)
	}
	if s := <-got; s != "abcd" {
		t.Fatal(s)
	}
}

// TestKeepAlive: a client pings while nothing is said, until it closes.
func TestKeepAlive(t *testing.T) {
	got := make(chan ws.OpCode, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(got)
		c, _, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		for {
			f, err := ws.ReadFrame(c)
			if err != nil {
				return
			}
			got <- f.Header.OpCode
			if f.Header.OpCode == ws.OpPing && ws.WriteFrame(c, ws.NewPongFrame(nil)) != nil {
				return
			}
		}
	}))
	defer s.Close()
	c, err := Dialer{ping: 100 * time.Millisecond}.Dial(t.Context(),
		"ws"+strings.TrimPrefix(s.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.ReadAll(c) // takes the answers
	}()
	for range 3 {
		if code := <-got; code != ws.OpPing {
			t.Fatal(code)
		}
	}
	_ = c.Close()
	<-read
	for code := range got {
		if code != ws.OpPing && code != ws.OpClose {
			t.Fatal(code)
		}
	}
}

// TestSilence: a stream whose other side vanishes without a word is dead after some pings, and one
// that answers pings and says nothing else is not.
func TestSilence(t *testing.T) {
	const ping = time.Second
	serveTo := func(answers int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _, _, err := ws.UpgradeHTTP(r, w)
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			for n := 0; ; {
				f, err := ws.ReadFrame(c)
				if err != nil {
					return
				}
				if f.Header.OpCode != ws.OpPing || n == answers {
					continue
				}
				if n++; n <= silences {
					err = ws.WriteFrame(c, ws.NewPongFrame(nil))
				} else {
					err = ws.WriteFrame(c, ws.NewBinaryFrame([]byte("word")))
				}
				if err != nil {
					return
				}
			}
		}))
		t.Cleanup(s.Close)
		return "ws" + strings.TrimPrefix(s.URL, "http")
	}
	vanishes, err := Dialer{ping: ping / 20}.Dial(t.Context(), serveTo(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = vanishes.Close() }()
	if n, err := vanishes.Read(make([]byte, 1)); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("%d bytes, %v", n, err)
	}
	stays, err := Dialer{ping: ping}.Dial(t.Context(), serveTo(silences+1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stays.Close() }()
	word := make([]byte, 4)
	if _, err := io.ReadFull(stays, word); err != nil || string(word) != "word" {
		t.Errorf("%q, %v", word, err)
	}
}

func TestRefused(t *testing.T) {
	for code, kind := range map[int]turnstone.Kind{401: turnstone.KindDenied, 403: turnstone.KindDenied,
		404: turnstone.KindNotFound, 429: turnstone.KindExhausted, 503: turnstone.KindUnavailable} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no", code)
		}))
		_, err := Dialer{}.Dial(t.Context(), "ws"+strings.TrimPrefix(s.URL, "http")+"/?token=secret",
			nil)
		if turnstone.KindOf(err) != kind || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: %s %v", code, turnstone.KindOf(err), err)
		}
		s.Close()
		if _, err = (Dialer{}).Dial(t.Context(), "ws"+strings.TrimPrefix(s.URL, "http"),
			nil); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // it accepts, and says nothing
	if _, err := (Dialer{}).Dial(ctx, "ws://"+l.Addr().String(), nil); err == nil ||
		errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
