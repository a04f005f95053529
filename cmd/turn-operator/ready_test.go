package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// TestReady: what keeps the operator from being ready is logged once, with its hint, and its end too;
// /readyz says it, and /healthz does not depend on it.
func TestReady(t *testing.T) {
	var out bytes.Buffer
	var err error
	r := &readiness{check: func(context.Context) error { return err }, log: slog.New(slog.NewTextHandler(&out, nil))}
	for _, now := range []error{nil, turnstone.Errorf("x", turnstone.KindDenied, "the token", "does not grant it").
		WithHint("make another"), nil} {
		err = now
		for range 3 {
			if got := r.ready(t.Context()); got != now {
				t.Errorf("%v is %v", now, got)
			}
		}
	}
	page := func(path string) (int, string) {
		w := httptest.NewRecorder()
		r.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if status, text := page("/readyz"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	err = turnstone.Errorf("x", turnstone.KindDenied, "the operator's token", "ended at noon").WithHint("make one")
	if status, text := page("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(text, "ended at noon") ||
		!strings.Contains(text, "make one") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := page("/healthz"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	err = nil
	_ = r.ready(t.Context())
	left, leave := context.WithCancel(t.Context())
	leave()
	err = context.Canceled
	_ = r.ready(left)
	if text := out.String(); strings.Count(text, "\n") != 4 || !strings.Contains(text, "does not grant it") ||
		!strings.Contains(text, "make another") || !strings.Contains(text, "again") {
		t.Error(text)
	}
}
