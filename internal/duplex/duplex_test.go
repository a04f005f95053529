package duplex_test

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"turnstone.dev/turnstone/internal/duplex"
)

// connect returns a connection to a server of h that has sent text, and the reader of its answers.
func connect(t *testing.T, h http.Handler, text string) (net.Conn, *bufio.Reader) {
	t.Helper()
	s := httptest.NewServer(h)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func answer(t *testing.T, in *bufio.Reader) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestAnswerFirst: the body can be read after the answer has begun.
func TestAnswerFirst(t *testing.T) {
	for name, sent := range map[string][2]string{
		"length": {"Content-Length: 2\r\n\r\na", "b"},
		"chunks": {"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "1\r\nb\r\n0\r\n\r\n"},
	} {
		c, in := connect(t, duplex.Handler(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "begun\n")
				_ = http.NewResponseController(w).Flush()
				body, err := io.ReadAll(r.Body)
				_, _ = fmt.Fprintf(w, "%s %v", body, err)
			})), "POST / HTTP/1.1\r\nHost: h\r\n"+sent[0])
		res := answer(t, in)
		text := bufio.NewReader(res.Body)
		if line, err := text.ReadString('\n'); line != "begun\n" {
			t.Fatalf("%s: %q %v", name, line, err)
		}
		_, _ = io.WriteString(c, sent[1])
		rest, err := io.ReadAll(text)
		if string(rest) != "ab <nil>" || err != nil {
			t.Errorf("%s: %q %v", name, rest, err)
		}
	}
}

// TestRestIsNoRequest: what was not read of a body is not taken for a request, although handlers
// around this one have replaced the body, and whatever its length and its form.
func TestRestIsNoRequest(t *testing.T) {
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
	for name, text := range map[string]string{
		"malformed chunk": "Transfer-Encoding: chunked\r\n\r\nz\r\n" + smuggled,
		"large":           "Content-Length: 300000\r\n\r\n" + smuggled, // net/http reads 256 KiB of a rest
		"small":           fmt.Sprintf("Content-Length: %d\r\n\r\n", len(smuggled)) + smuggled,
	} {
		var requests atomic.Int32
		inner := duplex.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			_, _ = io.WriteString(w, "no")
		}))
		_, in := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = struct{ io.ReadCloser }{r.Body}
			inner.ServeHTTP(w, r)
		}), "POST / HTTP/1.1\r\nHost: h\r\n"+text)
		res := answer(t, in)
		if b, err := io.ReadAll(res.Body); string(b) != "no" || err != nil {
			t.Errorf("%s: %q %v", name, b, err)
		}
		if !res.Close {
			t.Errorf("%s: the connection is to be used again", name)
		}
		if rest, _ := io.ReadAll(in); len(rest) > 0 || requests.Load() != 1 {
			t.Errorf("%s: %d requests, %q", name, requests.Load(), rest)
		}
	}
}

// TestReuse: a connection is used again if the body was read.
func TestReuse(t *testing.T) {
	const request = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
	_, in := connect(t, duplex.Handler(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			_, _ = w.Write(b)
		})), request+request)
	for range 2 {
		res := answer(t, in)
		if b, err := io.ReadAll(res.Body); string(b) != "a" || err != nil || res.Close {
			t.Errorf("%q %v, close %v", b, err, res.Close)
		}
	}
}

// TestInformational: a server that sends informational answers for ever does not occupy its proxy for
// ever, and some of them are passed on.
func TestInformational(t *testing.T) {
	for name, c := range map[string]struct {
		n    int
		want int
	}{"few": {3, http.StatusOK}, "endless": {100_000, http.StatusBadGateway}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			up, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = up.Close() }()
			if _, err := http.ReadRequest(bufio.NewReader(up)); err != nil {
				return
			}
			for range c.n {
				if _, err := io.WriteString(up, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"); err != nil {
					return
				}
			}
			_, _ = io.WriteString(up, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		}()
		target, err := url.Parse("http://" + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, in := connect(t, duplex.Handler(&httputil.ReverseProxy{Transport: &http.Transport{DisableKeepAlives: true},
			Rewrite:  func(p *httputil.ProxyRequest) { p.SetURL(target) },
			ErrorLog: log.New(io.Discard, "", 0)}), "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		hints, res := 0, answer(t, in)
		for ; res.StatusCode == http.StatusEarlyHints; hints++ {
			res = answer(t, in)
		}
		if res.StatusCode != c.want || hints == 0 || hints > 100 {
			t.Errorf("%s: %d after %d hints", name, res.StatusCode, hints)
		}
		_ = l.Close()
	}
}
