package router

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// reviewed lets the bearer of "good" use the sandbox a of the namespace default.
type reviewed struct{ asked int }

func (r *reviewed) Review(_ context.Context, token, namespace, name string) error {
	r.asked++
	switch {
	case token == "away":
		return turnstone.Errorf("test", turnstone.KindUnavailable, "the API server", "is away")
	case token != "good":
		return ErrUnknown
	case namespace+"/"+name != "default/a":
		return turnstone.Errorf("test", turnstone.KindDenied, "the caller", "may not")
	}
	return nil
}

// TestCallers: with a reviewer, only whom it allows is answered, before anything is asked of the server;
// a port-forward needs Forwarded, and nothing else looks like one.
func TestCallers(t *testing.T) {
	const local, other = "127.0.0.1:40000", "10.0.0.7:40000"
	for name, c := range map[string]struct {
		from, at, host, auth, more string
		object                     string
		forwarded                  bool
		status                     int
	}{
		"good":                    {auth: "Bearer good", status: http.StatusOK},
		"the scheme's case":       {auth: "bearer good", status: http.StatusOK},
		"no token":                {status: http.StatusUnauthorized},
		"another scheme":          {auth: "Basic Z29vZA==", status: http.StatusUnauthorized},
		"an unknown token":        {auth: "Bearer bad", status: http.StatusUnauthorized},
		"another sandbox":         {auth: "Bearer good", object: "b", status: http.StatusForbidden},
		"no API server":           {auth: "Bearer away", status: http.StatusServiceUnavailable},
		"loopback":                {from: local, at: local, host: "localhost:9", status: http.StatusUnauthorized},
		"a port-forward":          {from: local, at: local, host: "localhost:9", forwarded: true, status: http.StatusOK},
		"a port-forward by IP":    {from: "[::1]:4", at: "[::1]:5", host: "127.0.0.1:9", forwarded: true, status: http.StatusOK},
		"from another machine":    {from: other, at: local, host: "localhost:9", forwarded: true, status: http.StatusUnauthorized},
		"to the pod's address":    {from: local, at: other, host: "localhost:9", forwarded: true, status: http.StatusUnauthorized},
		"by the service's name":   {from: local, at: local, host: "sandbox-router-svc:8080", forwarded: true, status: http.StatusUnauthorized},
		"a web page":              {from: local, at: local, host: "localhost:9", more: "Origin", forwarded: true, status: http.StatusUnauthorized},
		"a proxy in the pod":      {from: local, at: local, host: "localhost:9", more: "X-Forwarded-For", forwarded: true, status: http.StatusUnauthorized},
		"a token of port-forward": {from: other, at: other, auth: "Bearer good", forwarded: true, status: http.StatusOK},
	} {
		b, review := newBusy(100, 0, nil), &reviewed{}
		h := New(Options{Server: b, Cluster: "c", Log: slog.New(slog.DiscardHandler), Network: true, Review: review,
			Forwarded: c.forwarded})
		r := httptest.NewRequest(http.MethodGet, "/exists/x", nil)
		if c.at == "" {
			c.from, c.at, c.host = other, other, "sandbox-router-svc:8080"
		}
		at, err := net.ResolveTCPAddr("tcp", c.at)
		if err != nil {
			t.Fatal(err)
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(at)))
		r.RemoteAddr, r.Host = c.from, c.host
		r.Header.Set(idHeader, "a")
		if c.object != "" {
			r.Header.Set(idHeader, c.object)
		}
		if c.auth != "" {
			r.Header.Set("Authorization", c.auth)
		}
		if c.more != "" {
			r.Header.Set(c.more, "http://localhost:9")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || (w.Code == http.StatusUnauthorized) != strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
		if c.status != http.StatusOK && b.opened != 0 {
			t.Errorf("%s: a channel was opened", name)
		}
	}
	// Two headers are none: what is in front may have judged the other one. /healthz needs none.
	h := New(Options{Server: newBusy(1, 0, nil), Review: &reviewed{}, Network: true})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header[idHeader], r.Header["Authorization"] = []string{"a"}, []string{"Bearer good", "Bearer bad"}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
		t.Errorf("two tokens: %d", w.Code)
	}
	w = httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil)); w.Code != http.StatusOK {
		t.Errorf("/healthz: %d", w.Code)
	}
}
