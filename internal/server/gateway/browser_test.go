package gateway

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone/internal/websocket"
)

const appOrigin = "https://app.example.org"

// A tape keeps what is written to it, and to several connections.
type tape struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *tape) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *tape) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// A recorded connection notes what the gateway sends to a node.
type recorded struct {
	net.Conn
	to *tape
}

func (c recorded) Write(p []byte) (int, error) {
	_, _ = c.to.Write(p)
	return c.Conn.Write(p)
}

// withOrigins allows pages of appOrigin, and notes the log and what goes to nodes.
func withOrigins(log, node *tape) change {
	return func(o *Options, _ *ServeOptions) {
		o.Origins = []string{appOrigin}
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		dial := o.Dial
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			c, err := dial(ctx, address)
			return recorded{c, node}, err
		}
	}
}

// upgradePage asks for a channel as a page does, and returns the answer.
func upgradePage(t *testing.T, n *nodeScene, fields ...string) (*http.Response, net.Conn) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", n.at)
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Write([]byte("GET " + n.path() + " HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n" +
		"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + strings.Join(fields, "\r\n") + "\r\n\r\n"))
	check(t, err)
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	check(t, err)
	_ = a.Body.Close()
	return a, c
}

// TestPageChannel: a page's token is a subprotocol, which neither a log nor the node sees, and the
// server selects the other one. Pages of other origins have no channel, nor has a page without a token.
func TestPageChannel(t *testing.T) {
	var log, toNode tape
	n := newNodeScene(t, withOrigins(&log, &toNode))
	token := n.token(t)
	protocol := "Sec-WebSocket-Protocol: " + websocket.Protocol + ", " + tokenProtocol + token
	origin := "Origin: " + appOrigin
	a, c := upgradePage(t, n, protocol, origin)
	if a.StatusCode != http.StatusSwitchingProtocols ||
		!slices.Equal(a.Header["Sec-Websocket-Protocol"], []string{websocket.Protocol}) {
		t.Errorf("%s %v", a.Status, a.Header)
	}
	_ = c.Close()
	for what, tc := range map[string]struct {
		status int
		fields []string
	}{
		"another origin": {http.StatusForbidden, []string{protocol, "Origin: https://other.example.org"}},
		"no origin":      {http.StatusForbidden, []string{protocol}},
		"no token": {http.StatusUnauthorized,
			[]string{"Sec-WebSocket-Protocol: " + websocket.Protocol, origin}},
		"a wrong token": {http.StatusUnauthorized,
			[]string{"Sec-WebSocket-Protocol: " + websocket.Protocol + ", " + tokenProtocol + "x.y.z", origin}},
		"two tokens": {http.StatusUnauthorized, []string{protocol + ", " + tokenProtocol + token, origin}},
		"a token in both": {http.StatusUnauthorized,
			[]string{protocol, origin, "Authorization: Bearer " + token}},
		"two fields": {http.StatusUnauthorized, []string{protocol, protocol, origin}},
	} {
		if a, _ := upgradePage(t, n, tc.fields...); a.StatusCode != tc.status ||
			strings.Contains(a.Header.Get("Sec-WebSocket-Protocol"), tokenProtocol) {
			t.Errorf("%s: %s %v", what, a.Status, a.Header)
		}
	}
	n.channels(t)
	n.scene.end()
	if !strings.Contains(log.String(), "channel ended") || !strings.Contains(toNode.String(), websocket.Protocol) {
		t.Error("nothing is recorded")
	}
	for what, text := range map[string]string{"the log": log.String(), "the node": toNode.String()} {
		if strings.Contains(text, token) || strings.Contains(text, tokenProtocol) {
			t.Errorf("%s has the token: %s", what, text)
		}
	}
}

// TestPageChannelOff: without origins no page has a channel.
func TestPageChannelOff(t *testing.T) {
	n := newNodeScene(t)
	a, _ := upgradePage(t, n, "Sec-WebSocket-Protocol: "+tokenProtocol+n.token(t), "Origin: "+appOrigin)
	if a.StatusCode != http.StatusForbidden {
		t.Error(a.Status)
	}
}

// TestCrossOrigin: a browser may send calls of an allowed page, and no others; without origins the
// server says nothing about them.
func TestCrossOrigin(t *testing.T) {
	ask := func(s *scene, method, path, origin, want string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, s.url()+path, nil)
		check(t, err)
		if r.Header.Set("Origin", origin); want != "" {
			r.Header.Set("Access-Control-Request-Method", want)
			r.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		}
		a, err := s.transport(t, false).RoundTrip(r)
		check(t, err)
		_ = a.Body.Close()
		return a
	}
	const allow, path = "Access-Control-Allow-Origin", "/turnstone.v1.TurnService/GetTurn"
	var log, node tape
	s := newScene(t, withOrigins(&log, &node))
	a := ask(s, http.MethodOptions, path, appOrigin, "POST")
	if a.StatusCode != http.StatusNoContent || a.Header.Get(allow) != appOrigin ||
		!strings.Contains(a.Header.Get("Access-Control-Allow-Headers"), "Authorization") ||
		!slices.Contains(a.Header["Vary"], "Origin") || a.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Error(a.Status, a.Header)
	}
	// the answer of a call without a token can be read, so that the page can say so
	if a = ask(s, http.MethodPost, path, appOrigin, ""); a.StatusCode != http.StatusUnauthorized ||
		a.Header.Get(allow) != appOrigin {
		t.Error(a.Status, a.Header)
	}
	for _, tc := range []struct{ method, path, origin, want string }{
		{http.MethodOptions, path, "https://other.example.org", "POST"},
		{http.MethodPost, path, "null", ""},
		{http.MethodOptions, PlainPath + "run", appOrigin, "POST"},
		{http.MethodOptions, HealthPath, appOrigin, "GET"},
	} {
		if a := ask(s, tc.method, tc.path, tc.origin, tc.want); a.Header.Get(allow) != "" {
			t.Error(tc, a.Status, a.Header)
		}
	}
	if a := ask(newScene(t), http.MethodOptions, path, appOrigin, "POST"); a.Header.Get(allow) != "" ||
		a.StatusCode < 400 {
		t.Error(a.Status, a.Header)
	}
}
