package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// A stale transport does what net/http's HTTP/2 does if connections turn out to be unusable: for each
// it closes the body, before it reads the body for the next one or, if late is set, while it does.
type stale struct {
	times int
	late  bool
	got   string
}

func (s *stale) RoundTrip(r *http.Request) (*http.Response, error) {
	first := make([]byte, 1)
	if !s.late {
		s.close(r.Body)
	}
	n, err := r.Body.Read(first)
	if s.late {
		s.close(r.Body)
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.got = string(first[:n]) + string(b)
	_ = r.Body.Close()
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

func (s *stale) close(b io.Closer) {
	for range s.times {
		_ = b.Close()
	}
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
		"a good connection":             {},
		"an unusable connection":        {times: 1},
		"one whose close comes late":    {times: 1, late: true},
		"three of them":                 {times: 3},
		"three whose closes come late":  {times: 3, late: true},
		"none that is unusable, closed": {late: true},
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
