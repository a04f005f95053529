package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// A stale transport does what net/http's HTTP/2 does if connections turn out to be unusable: for each
// it closes the body, before it reads the body for the next one.
type stale struct {
	times int
	got   string
}

func (s *stale) RoundTrip(r *http.Request) (*http.Response, error) {
	for range s.times {
		_ = r.Body.Close()
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.got = string(b)
	_ = r.Body.Close()
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// A serverBody cannot be read after it was closed, as a server's.
type serverBody struct {
	r  io.Reader
	mu sync.Mutex
}

func (b *serverBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.r == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.r.Read(p)
}

func (b *serverBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.r = nil
	return nil
}

// TestUnusableConnection: a call reaches the controller with its whole body, however many connections
// turn out to be unusable.
func TestUnusableConnection(t *testing.T) {
	const text = `{"session":"s"}`
	for what, s := range map[string]*stale{
		"a good connection":      {},
		"an unusable connection": {times: 1},
		"three of them":          {times: 3},
	} {
		h := Controller(&url.URL{Scheme: "http", Host: "controller"}, s, nil)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost,
			"/turnstone.v1.TurnService/GetTurn", &serverBody{r: strings.NewReader(text)})
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || s.got != text {
			t.Errorf("%s: %d, the controller got %q: %s", what, w.Code, s.got, w.Body)
		}
	}
}

// An early transport answers, reads the request's body once the answer has begun to arrive, and drops
// the answer if it cannot, as net/http's HTTP/2 does.
type early struct {
	answer string
	began  chan struct{}
}

func (e early) RoundTrip(r *http.Request) (*http.Response, error) {
	out, in := io.Pipe()
	go func() {
		<-e.began
		_, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			_, err = io.WriteString(in, e.answer)
		}
		_ = in.CloseWithError(err)
	}()
	return &http.Response{StatusCode: http.StatusForbidden, Body: out, Request: r, ContentLength: -1,
		ProtoMajor: 2, Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

// TestEarlyAnswer: an answer arrives as a whole that began before the request's body was read.
func TestEarlyAnswer(t *testing.T) {
	e := early{`{"code":"permission_denied"}`, make(chan struct{})}
	srv := httptest.NewServer(Controller(&url.URL{Scheme: "http", Host: "controller"}, e, nil))
	defer srv.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		srv.URL+"/turnstone.v1.TurnService/GetTurn", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := srv.Client().Do(r)
	close(e.began)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusForbidden || string(b) != e.answer || err != nil {
		t.Errorf("%d %q %v", res.StatusCode, b, err)
	}
}

// TestAnswerBeforeTheBody: the answer and the request's body arrive as a whole if the answer begins
// before the caller has sent all of the body.
func TestAnswerBeforeTheBody(t *testing.T) {
	controller := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "begun\n")
		_ = c.Flush()
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v", body, err)
	}))
	defer controller.Close()
	to, err := url.Parse(controller.URL)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(Controller(to, http.DefaultTransport, nil))
	defer srv.Close()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	_, _ = io.WriteString(c, "POST /turnstone.v1.TurnService/GetTurn HTTP/1.1\r\nHost: h\r\n"+
		"Content-Length: 2\r\n\r\na")
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(answer.Body)
	if line, err := in.ReadString('\n'); line != "begun\n" {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = io.WriteString(c, "b")
	if rest, err := io.ReadAll(in); string(rest) != "ab <nil>" || err != nil {
		t.Errorf("%q %v", rest, err)
	}
}

// TestRefusedClientSendsNoMore: a client of HTTP/2 that is refused before it has sent its body sends no more of
// it, and gets the end of the answer all the same.
func TestRefusedClientSendsNoMore(t *testing.T) {
	c := newController(t)
	const answer = `{"code":"permission_denied"}`
	c.handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, answer)
	})
	srv := httptest.NewUnstartedServer(Controller(c.base(), c.transport(), nil))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	body, never := io.Pipe()
	defer func() { _ = never.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/turnstone.v1.TurnService/GetTurn", body)
	check(t, err)
	r.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: c.transport()}).Do(r)
	check(t, err)
	b, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusForbidden || string(b) != answer || err != nil {
		t.Errorf("%d %q %v", res.StatusCode, b, err)
	}
}
