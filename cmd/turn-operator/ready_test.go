package main

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// TestReady: what keeps the operator from being ready is logged once, with its hint, and its end too.
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
	left, leave := context.WithCancel(t.Context())
	leave()
	err = context.Canceled
	_ = r.ready(left)
	if text := out.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "does not grant it") ||
		!strings.Contains(text, "make another") || !strings.Contains(text, "again") {
		t.Error(text)
	}
}
