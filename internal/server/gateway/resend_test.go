package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A stale transport does with its first requests what net/http's HTTP/2 does if a connection turns
// out to be unusable: it closes the body, and reads it for another connection.
type stale struct {
	times, asked int
	early        bool // it has read of the body before
	got          string
}

func (s *stale) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked++
	if s.early {
		_, _ = io.ReadFull(r.Body, make([]byte, 1))
	}
	if s.asked <= s.times {
		_ = r.Body.Close()
		_, err := r.Body.Read(make([]byte, 1))
		return nil, err
	}
	b, err := io.ReadAll(r.Body)
	s.got = string(b)
	_ = r.Body.Close()
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, err
}

// TestResend: a call is sent again over another connection if nothing of it was sent, with its
// whole body.
func TestResend(t *testing.T) {
	const body = `{"session":"s"}`
	for what, c := range map[string]struct {
		stale
		status, asked int
	}{
		"a good connection":       {stale{}, http.StatusOK, 1},
		"an unusable connection":  {stale{times: 1}, http.StatusOK, 2},
		"three of them":           {stale{times: 3}, http.StatusOK, 4},
		"no usable connection":    {stale{times: 1000}, http.StatusServiceUnavailable, 4},
		"after it was begun once": {stale{times: 1, early: true}, http.StatusServiceUnavailable, 1},
	} {
		t.Run(what, func(t *testing.T) {
			s := c.stale
			h := Controller(&url.URL{Scheme: "http", Host: "controller"}, &s, nil)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost,
				"/turnstone.v1.TurnService/GetTurn", io.NopCloser(strings.NewReader(body)))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || s.asked != c.asked {
				t.Errorf("%d after %d attempts: %s", w.Code, s.asked, w.Body)
			}
			if w.Code == http.StatusOK && s.got != body {
				t.Errorf("the controller got %q", s.got)
			}
		})
	}
}
