package patience

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestCallersThatWait: a handler is freed of a caller that reads nothing of its answer, and of one that
// sends nothing of its body; its context ends too.
func TestCallersThatWait(t *testing.T) {
	for name, text := range map[string]string{
		"reads nothing": "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"sends nothing": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n",
	} {
		freed := make(chan error, 1)
		s := httptest.NewServer(Handler(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(io.Discard, r.Body)
				for part := make([]byte, 1<<20); err == nil; {
					_, err = w.Write(part)
				}
				<-r.Context().Done()
				freed <- err
			}), 100*time.Millisecond))
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, text)
		select {
		case <-freed:
		case <-time.After(2 * time.Minute):
			t.Fatalf("a caller that %s holds a handler", name)
		}
		_ = c.Close()
		s.Close()
	}
}

// TestLongAnswers: an answer may be silent for longer than a caller.
func TestLongAnswers(t *testing.T) {
	s := httptest.NewServer(Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			time.Sleep(50 * time.Millisecond)
			_, _ = io.WriteString(w, "a")
			_ = http.NewResponseController(w).Flush()
		}
	}), 5*time.Millisecond))
	defer s.Close()
	res, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if b, err := io.ReadAll(res.Body); string(b) != "aaa" || err != nil {
		t.Errorf("%q %v", b, err)
	}
}
