package mcpend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/internal/server/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verifier knows tokens that are the subject of their caller.
type verifier struct{}

func (verifier) Verify(_ context.Context, token string) (auth.Principal, error) {
	switch token {
	case "bad":
		return auth.Principal{}, errors.New("the token sesame is bad")
	case "stale":
		return auth.Principal{}, turnstone.Errorf("auth", turnstone.KindUnavailable, "list", "is old")
	case "narrow":
		return auth.Principal{Subject: "a", Sandbox: "sb_1"}, nil
	}
	return auth.Principal{Tenant: "t", Subject: strings.TrimRight(token, "0123456789")}, nil
}

func endpoint() *Endpoint {
	return New(Options{Verifier: verifier{}, Idle: time.Hour, Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string, func() (string, error)) (mcpdoor.Place, error) {
			return mcpdoor.Place{}, errors.New("no place")
		}})
}

// initialize begins a connection, and returns the status and the connection's name.
func initialize(e *Endpoint, token string) (*httptest.ResponseRecorder, string) {
	r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(`{"jsonrpc":"2.0","id":1,`+
		`"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},`+
		`"clientInfo":{"name":"t","version":"1"}}}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	return w, w.Header().Get(sessionHeader)
}

// TestTokens: without a token that counts, nothing begins, and no answer has words of the token.
func TestTokens(t *testing.T) {
	e := endpoint()
	for token, want := range map[string]int{"": 401, "bad": 401, "narrow": 401, "stale": 500} {
		w, id := initialize(e, token)
		if w.Code != want || id != "" || strings.Contains(w.Body.String(), "sesame") {
			t.Errorf("%q: %d %s", token, w.Code, w.Body)
		}
	}
	end(t, e)
}

// TestConnectionsOfCaller: a caller has a bound of connections, which leaves others theirs; tokens of
// one subject are one caller.
func TestConnectionsOfCaller(t *testing.T) {
	e := endpoint()
	for n := range maxOfCaller {
		if w, id := initialize(e, fmt.Sprintf("a%d", n)); w.Code != 200 || id == "" {
			t.Fatalf("connection %d: %d %s", n, w.Code, w.Body)
		}
	}
	if w, _ := initialize(e, "a"); w.Code != http.StatusTooManyRequests {
		t.Errorf("one more: %d", w.Code)
	}
	w, id := initialize(e, "b")
	if w.Code != 200 {
		t.Errorf("another caller: %d", w.Code)
	}
	for token, want := range map[string]int{"a": 403, "b": 204} {
		r := httptest.NewRequest(http.MethodDelete, Path, nil)
		r.Header.Set(sessionHeader, id)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s ends b's connection: %d", token, w.Code)
		}
	}
	end(t, e)
}

// TestRenewedToken: the latest token of a caller counts for all of its connections.
func TestRenewedToken(t *testing.T) {
	var c callers
	c.show("a", "unknown")
	token := c.enter("a", "one")
	c.show("b", "theirs")
	c.show("a", "two")
	if got := *token.Load(); got != "two" {
		t.Error(got)
	}
	c.leave("a")
	if len(c.all) != 0 {
		t.Error("the token is kept")
	}
}

func end(t *testing.T, e *Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := e.door.Close(ctx); err != nil {
		t.Error(err)
	}
}
