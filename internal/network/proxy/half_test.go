package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
	"turnstone.dev/turnstone/internal/network/recording"
)

// TestHalfClosed checks that a guest that has closed its sending side is answered, however early
// its end is seen: net/http looks for the end before the handler runs, so that only many attempts
// show a canceled request.
func TestHalfClosed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		time.Sleep(5 * time.Millisecond) //wait: a slower answer is as good
		fmt.Fprint(w, "slow answer")
	}))
	t.Cleanup(s.Close)
	web := at("web.example.com", "192.0.2.2:80", s)
	p := newProxied(t, Options{Recorder: recording.NewRecorder(recording.Options{Out: io.Discard})},
		web)
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: web.example.com\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: web.example.com\r\nContent-Length: 4\r\n\r\nbody",
		"POST / HTTP/1.1\r\nHost: web.example.com\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n" +
			"body\r\n0\r\n\r\n",
	} {
		for range 60 {
			c := p.connect(web)
			fmt.Fprint(c, request)
			_ = c.(*net.TCPConn).CloseWrite()
			if b, err := io.ReadAll(c); !bytes.Contains(b, []byte("slow answer")) {
				t.Fatalf("%q: %q %v", request, b, err)
			}
			_ = c.Close()
		}
	}
}

// TestHalfClosedUnhandled checks that net/http's own answers, and refusals, are sent at once as
// well.
func TestHalfClosedUnhandled(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	web := at("web.example.com", "192.0.2.2:80", s)
	p := newProxied(t, Options{Recorder: recording.NewRecorder(recording.Options{Out: io.Discard})},
		web)
	for _, request := range []string{
		"OPTIONS * HTTP/1.1\r\nHost: web.example.com\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n",
		"CONNECT web.example.com:80 HTTP/1.1\r\nHost: web.example.com\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: web.example.com\r\nExpect: other\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: web.example.com\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
	} {
		for range 10 {
			c := p.connect(web)
			fmt.Fprint(c, request)
			_ = c.(*net.TCPConn).CloseWrite()
			// a fifth of the time that a hanging answer takes
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if b, err := io.ReadAll(c); err != nil || !bytes.HasPrefix(b, []byte("HTTP/1.1 ")) {
				t.Fatalf("%q: %q %v", request, b, err)
			}
			_ = c.Close()
		}
	}
}
