package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"turnstone.dev/turnstone/internal/api"
)

// dial connects to a scene.
func (s *scene) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.at)
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// trickle writes a byte of text every few milliseconds until the other side has enough.
func trickle(c net.Conn, text string) {
	for i := 0; ; i++ {
		if _, err := io.WriteString(c, text[i%len(text):i%len(text)+1]); err != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestSlowClients ends connections on which a head, a handshake or a body does not arrive in time,
// however steadily a client sends, and serves others meanwhile.
func TestSlowClients(t *testing.T) {
	fast := limits(Limits{Handshake: 2 * time.Second, Body: 2 * time.Second})
	plain, secure := newScene(t, fast), newScene(t, fast, withTLS(t))
	post := "POST /turnstone.v1.TurnService/GetTurn HTTP/1.1\r\nHost: x\r\n" +
		"Content-Type: application/json\r\nAuthorization: Bearer " + plain.token(t) + "\r\n"
	type end struct {
		all []byte
		err error
	}
	type client struct {
		s     *scene
		begin string
		drips string
		want  string // in the answer
	}
	clients := map[string]client{
		"head":                {plain, "GET / HTTP/1.1\r\n", "X-A: b\r\n", ""},
		"nothing":             {plain, "", "", ""},
		"handshake":           {secure, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "\x00", ""},
		"no handshake":        {secure, "", "", ""},
		"preface of h2":       {plain, "PRI * HTTP/2.0\r\n", "\r", ""},
		"body":                {plain, post + "Content-Length: 500\r\n\r\n{", " ", "deadline_exceeded"},
		"chunks":              {plain, post + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n", "deadline_exceeded"},
		"refused's body":      {plain, strings.Replace(post, "Bearer ", "Bearer x", 1) + "Content-Length: 500\r\n\r\n{", " ", "unauthenticated"},
		"refused's long body": {plain, strings.Replace(post, "Bearer ", "Bearer x", 1) + "Content-Length: 500000\r\n\r\n{", " ", "unauthenticated"},
		"unread body":         {plain, "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n", " ", "ok"},
	}
	ends := map[string]chan end{}
	for name, c := range clients { // all at once: each takes as long as the limits
		conn, ended := c.s.dial(t), make(chan end, 1)
		_, err := io.WriteString(conn, c.begin)
		check(t, err)
		if c.drips != "" {
			go trickle(conn, c.drips)
		}
		go func() {
			all, err := io.ReadAll(conn) // it returns when the server has ended the connection
			ended <- end{all, err}
		}()
		ends[name] = ended
	}
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			c.s.works(t)
			e := <-ends[name]
			if e.err != nil && !strings.Contains(e.err.Error(), "reset") {
				t.Error(e.err)
			}
			if !strings.Contains(string(e.all), c.want) {
				t.Errorf("the answer is %q", e.all)
			}
			c.s.works(t)
		})
	}
}

// TestSlowStreams does the same with streams of HTTP/2, whose connection continues.
func TestSlowStreams(t *testing.T) {
	s := newScene(t, limits(Limits{Body: 2 * time.Second}))
	r, w := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		s.url()+"/turnstone.v1.TurnService/GetTurn", r)
	check(t, err)
	request.Header.Set("Content-Type", "application/json")
	tr := s.transport(t, true)
	go func() {
		for {
			if _, err := w.Write([]byte(" ")); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	answer, err := bearer{tr, s.token(t)}.RoundTrip(request)
	check(t, err)
	b, err := io.ReadAll(answer.Body)
	check(t, err)
	_ = answer.Body.Close()
	_ = r.Close()
	if !bytes.Contains(b, []byte("deadline_exceeded")) {
		t.Errorf("%d %s", answer.StatusCode, b)
	}
	s.works(t)
}

// TestSlowReader ends a watch whose client reads nothing, once its buffers are full.
func TestSlowReader(t *testing.T) {
	full := make(chan error, 1)
	s := newScene(t, limits(Limits{Stall: 200 * time.Millisecond}), func(o *Options, _ *ServeOptions) {
		control := o.Control
		o.Control = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "WatchTurns") {
				control.ServeHTTP(w, r)
				return
			}
			for p := make([]byte, 64<<10); ; {
				if _, err := w.Write(p); err != nil {
					full <- err
					return
				}
			}
		})
	})
	conn := s.dial(t)
	_, err := io.WriteString(conn, "POST /turnstone.v1.TurnService/WatchTurns HTTP/1.1\r\nHost: x\r\n"+
		"Content-Length: 0\r\nAuthorization: Bearer "+s.token(t)+"\r\n\r\n")
	check(t, err)
	if err := <-full; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	// A stream of HTTP/2 whose window is never opened.
	stingy := s.dial(t)
	_, err = io.WriteString(stingy, http2.ClientPreface)
	check(t, err)
	f := http2.NewFramer(stingy, stingy)
	check(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}))
	check(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndStream: true, EndHeaders: true,
		BlockFragment: encode(t, ":method", "POST", ":scheme", "http", ":authority", "x", ":path",
			"/turnstone.v1.TurnService/WatchTurns", "authorization", "Bearer "+s.token(t))}))
	<-full
	s.works(t)
}

// TestHostileFrames sends what HTTP/2 does not allow, or what was an attack on it.
func TestHostileFrames(t *testing.T) {
	s := newScene(t, limits(Limits{Handshake: time.Second, Idle: time.Second}))
	for name, send := range map[string]func(*http2.Framer) error{
		"endless continuation": func(f *http2.Framer) error {
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			for err == nil {
				err = f.WriteContinuation(1, false, encode(t, "x", strings.Repeat("y", 1000)))
			}
			return err
		},
		"rapid reset": func(f *http2.Framer) error {
			for id := uint32(1); ; id += 2 {
				err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true,
					EndStream: true, BlockFragment: encode(t, ":method", "GET", ":scheme", "http",
						":authority", "x", ":path", HealthPath)})
				if err == nil {
					err = f.WriteRSTStream(id, http2.ErrCodeCancel)
				}
				if err != nil || id > 20_000 {
					return err
				}
			}
		},
		"pings": func(f *http2.Framer) error {
			for n := range 20_000 {
				var b [8]byte
				binary.BigEndian.PutUint64(b[:], uint64(n))
				if err := f.WritePing(false, b); err != nil {
					return err
				}
			}
			return nil
		},
		"large frame": func(f *http2.Framer) error {
			return f.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 1<<20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(t)
			_, err := io.WriteString(conn, http2.ClientPreface)
			check(t, err)
			f := http2.NewFramer(conn, nil)
			check(t, f.WriteSettings())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(io.Discard, conn)
			}()
			_ = send(f)
			s.works(t)
			_ = conn.Close()
			<-done
		})
	}
}

// TestOversized answers requests that are too large, on the wire or once decompressed, and those
// that no codec reads.
func TestOversized(t *testing.T) {
	s := newScene(t, limits(Limits{Request: 512 << 10, Rate: 1000, Burst: 1000}))
	large := bytes.Repeat([]byte(" "), 600<<10)
	for name, c := range map[string]struct {
		kind, encoding string
		body           []byte
		chunked        bool
		status         int
		code           string
	}{
		"length":          {"application/json", "", large, false, 429, "resource_exhausted"},
		"chunked":         {"application/json", "", large, true, 429, "resource_exhausted"},
		"message":         {"application/json", "", large[:300<<10], false, 429, "resource_exhausted"},
		"bomb":            {"application/json", "gzip", gzipped(t, make([]byte, 64<<20)), false, 429, "resource_exhausted"},
		"no gzip":         {"application/json", "gzip", []byte("xxxx"), false, 400, "invalid_argument"},
		"unknown gzip":    {"application/json", "zstd", []byte("xxxx"), false, 501, "unimplemented"},
		"no json":         {"application/json", "", []byte("{"), false, 400, "invalid_argument"},
		"deep json":       {"application/json", "", bytes.Repeat([]byte(`{"a":`), 40<<10), false, 400, "invalid_argument"},
		"unknown field":   {"application/json", "", []byte(`{"netwrok":1}`), false, 400, "invalid_argument"},
		"no utf-8":        {"application/json", "", []byte("{\"ticketId\":\"\xff\"}"), false, 400, "invalid_argument"},
		"no proto":        {"application/proto", "", []byte("\xff\xff\xff\xff\xff"), false, 400, "invalid_argument"},
		"length in proto": {"application/proto", "", []byte("\x0a\xff\xff\xff\xff\x07"), false, 400, "invalid_argument"},
		"unknown proto":   {"application/proto", "", []byte("\xfa\x01\x01x"), false, 400, "invalid_argument"},
		"other type":      {"text/html", "", []byte("x"), false, 415, ""},
	} {
		for _, two := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				var body io.Reader = bytes.NewReader(c.body)
				if c.chunked {
					body = io.MultiReader(body)
				}
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
					s.url()+"/turnstone.v1.TurnService/GetTurn", body)
				check(t, err)
				r.Header.Set("Content-Type", c.kind)
				if c.encoding != "" {
					r.Header.Set("Content-Encoding", c.encoding)
				}
				answer, err := bearer{s.transport(t, two), s.token(t)}.RoundTrip(r)
				check(t, err)
				b, err := io.ReadAll(answer.Body)
				check(t, err)
				_ = answer.Body.Close()
				if answer.StatusCode != c.status || !bytes.Contains(b, []byte(c.code)) {
					t.Errorf("HTTP/2 %v: %d %.300s", two, answer.StatusCode, b)
				}
				s.works(t)
			})
		}
	}
}

// TestOversizedEnvelope announces messages that do not come.
func TestOversizedEnvelope(t *testing.T) {
	s := newScene(t, limits(Limits{Rate: 1000, Burst: 1000}))
	for _, kind := range []string{"application/grpc", "application/grpc-web", "application/connect+proto"} {
		for name, body := range map[string]string{"length": "\x00\xff\xff\xff\xff", "short": "\x00\x00\x00\x00\x09x",
			"flags": "\xff\x00\x00\x00\x01x", "half": "\x00\x00"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				s.url()+"/turnstone.v1.TurnService/WatchTurns", strings.NewReader(body))
			check(t, err)
			r.Header.Set("Content-Type", kind)
			r.Header.Set("Te", "trailers")
			answer, err := bearer{s.transport(t, true), s.token(t)}.RoundTrip(r)
			check(t, err)
			b, err := io.ReadAll(answer.Body)
			check(t, err)
			_ = answer.Body.Close()
			status := answer.Trailer.Get("Grpc-Status") + answer.Header.Get("Grpc-Status")
			if status == "0" || status == "13" || status == "" && !bytes.Contains(b, []byte("grpc-status")) &&
				!bytes.Contains(b, []byte(`"error"`)) {
				t.Errorf("%s %s: %s %q", kind, name, status, b)
			}
			s.works(t)
		}
	}
	if api.MaxRequest > 512<<10 {
		t.Error("the default limit is less than the largest request")
	}
}

// TestRandomHandshakes sends random bytes to both kinds of server.
func TestRandomHandshakes(t *testing.T) {
	plain, secure := newScene(t), newScene(t, withTLS(t))
	for _, s := range []*scene{plain, secure} {
		for n := range 50 {
			c := s.dial(t)
			_, _ = c.Write(noise(n, 4096))
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		}
		s.works(t)
	}
	old := secure.trusting()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	d := tls.Dialer{Config: old}
	if c, err := d.DialContext(context.Background(), "tcp", secure.at); err == nil {
		_ = c.Close()
		t.Error("TLS 1.1 is accepted")
	}
}
