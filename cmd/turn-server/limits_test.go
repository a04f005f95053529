package main

import (
	"bufio"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
)

// limited are the settings of TestLimits: each is so small that a test reaches it.
var limited = []string{"TURN_SERVER_LIMITS_CONNECTIONS=40", "TURN_SERVER_LIMITS_IDLE=1s",
	"TURN_SERVER_LIMITS_HANDSHAKE=500ms", "TURN_SERVER_LIMITS_REQUEST=2KiB",
	"TURN_SERVER_LIMITS_RATE=5", "TURN_SERVER_LIMITS_BURST=20", "TURN_SERVER_TOKENS_LONGEST=30m",
	"TURN_SERVER_NODE_NAME=n1", "TURN_SERVER_LOG_LEVEL=debug"}

// dial connects to a server from one of the addresses of loopback.
func dial(t *testing.T, address string, host byte) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}).
		DialContext(t.Context(), "tcp", address)
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const health = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

// others reports a server that does not answer other callers.
func others(t *testing.T, address string) {
	t.Helper()
	c := dial(t, address, 9)
	_, err := io.WriteString(c, health)
	check(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	check(t, err)
	if answer.StatusCode != http.StatusOK {
		t.Errorf("another caller gets %s", answer.Status)
	}
	check(t, c.Close())
}

// ends reads a connection to its end, which is the server's to make, and closes it.
func ends(t *testing.T, c net.Conn) string {
	t.Helper()
	check(t, c.SetReadDeadline(time.Now().Add(2*time.Minute)))
	b, err := io.ReadAll(c)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Error("the server keeps the connection")
	}
	_ = c.Close()
	return string(b)
}

// TestLimits: each limit of the settings is in effect in a server of its own process, hostile
// callers get an error that names it, and other callers are answered meanwhile.
func TestLimits(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "home"), limited, "--listen", "127.0.0.1:0")
	p.await("node registered")
	operator := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_HOST=" + p.socket()}}
	short := func() string {
		return strings.TrimSpace(operator.must("token", "create", "--name", "ci", "--ttl", "20m"))
	}
	at := p.address()
	slowCallers(t, at)
	many(t, at)
	largeRequests(t, "http://"+at, short)
	tooOften(t, "http://"+at, short())
	hostileChannels(t, at, short)
	if _, errs, err := operator.turn("token", "create", "--name", "long", "--ttl", "1h"); err == nil ||
		!strings.Contains(errs, "30m") {
		t.Errorf("a token that lives too long: %v: %s", err, errs)
	}
	others(t, at)
	p.end()
	if strings.Contains(p.text(), "panic") {
		t.Error("the server has panicked")
	}
}

// slowCallers send what they have to say slowly, or nothing.
func slowCallers(t *testing.T, at string) {
	t.Helper()
	for what, begins := range map[string]string{"nothing": "", "half a head": "GET / HTTP/1.1\r\nX: ",
		"the preface of HTTP/2": "PRI * HTTP/2.0\r\n", "silence after a request": health} {
		c := dial(t, at, 2)
		_, err := io.WriteString(c, begins)
		check(t, err)
		if strings.HasSuffix(begins, ": ") {
			go func() {
				for {
					if _, err := io.WriteString(c, "x"); err != nil {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
		}
		others(t, at)
		if got := ends(t, c); strings.Contains(got, "200 OK") != (begins == health) {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// many connects more often than the server permits, from several addresses. Silent connections end
// soon, so on a slow machine it takes several rounds to have enough of them.
func many(t *testing.T, at string) {
	t.Helper()
	waitFor(t, func() string {
		var all []net.Conn
		for n := range 40 {
			all = append(all, dial(t, at, byte(20+n%5)))
		}
		one := dial(t, at, 30)
		_, _ = io.WriteString(one, health)
		got := ends(t, one)
		for _, c := range all {
			_ = c.Close()
		}
		if strings.Contains(got, "503 ") && strings.Contains(got, "has 40") {
			return ""
		}
		return "one connection too many: " + got
	})
	waitFor(t, func() string {
		c := dial(t, at, 31)
		_, _ = io.WriteString(c, health)
		if got := ends(t, c); !strings.Contains(got, "200 OK") {
			return "afterwards: " + got
		}
		return ""
	})
}

// largeRequests sends requests that are too large, and those that cannot be read.
func largeRequests(t *testing.T, url string, token func() string) {
	t.Helper()
	large := `{"session":"` + strings.Repeat("x", 3<<10) + `"}`
	for what, c := range map[string]struct {
		kind, body, code string
	}{
		"a large body":      {"application/json", large, "resource_exhausted"},
		"a large message":   {"application/proto", large, "resource_exhausted"},
		"no JSON":           {"application/json", `{"a`, "invalid_argument"},
		"deep JSON":         {"application/json", strings.Repeat("[", 1500), "invalid_argument"},
		"an unknown field":  {"application/json", `{"sesion":"x"}`, "invalid_argument"},
		"no protobuf":       {"application/proto", "\xff\xff\xff", "invalid_argument"},
		"a length of 2 GiB": {"application/proto", "\x0a\xff\xff\xff\xff\x07", "invalid_argument"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			url+"/turnstone.v1.TurnService/GetTurn", strings.NewReader(c.body))
		check(t, err)
		repeatable(r)
		r.Header.Set("Content-Type", c.kind)
		r.Header.Set("Authorization", "Bearer "+token())
		answer, err := http.DefaultClient.Do(r)
		check(t, err)
		b, err := io.ReadAll(answer.Body)
		check(t, err)
		_ = answer.Body.Close()
		if !strings.Contains(string(b), `"code":"`+c.code+`"`) {
			t.Errorf("%s: %d %s", what, answer.StatusCode, b)
		}
	}
}

// tooOften uses a token until its rate is exceeded, and after the time that the answer says.
func tooOften(t *testing.T, url, token string) {
	t.Helper()
	for n := 0; ; n++ {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			url+"/turnstone.v1.TurnService/ListTurns", strings.NewReader("{}"))
		check(t, err)
		r.Header.Set("Content-Type", "application/json")
		repeatable(r)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		check(t, err)
		b, err := io.ReadAll(answer.Body)
		check(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusOK && n < 1000 {
			continue
		}
		d := refusalOf(t, string(b)).Details[0].Debug
		wait, err := strconv.Atoi(answer.Header.Get("Retry-After"))
		if answer.StatusCode != http.StatusTooManyRequests || err != nil || wait < 1 ||
			!d.Retryable || d.RetryAfter == "" || n < 20 {
			t.Fatalf("after %d: %d, Retry-After %d: %s", n, answer.StatusCode, wait, b)
		}
		time.Sleep(time.Duration(wait) * time.Second)
		if status, got := call(t, http.DefaultClient, url, token, "TurnService/ListTurns",
			"{}"); status != http.StatusOK {
			t.Errorf("after the wait: %d %s", status, got)
		}
		return
	}
}

// hostileChannels opens WebSockets to the node and sends what no client sends.
func hostileChannels(t *testing.T, at string, token func() string) {
	t.Helper()
	open := func() net.Conn {
		d := ws.Dialer{Header: ws.HandshakeHeaderHTTP(http.Header{
			"Authorization": {"Bearer " + token()}})}
		c := dial(t, at, 3)
		_, _, err := d.Upgrade(c, &url.URL{Scheme: "ws", Host: at,
			Path: "/turnstone/v1/nodes/n1/channel"})
		check(t, err)
		return c
	}
	random := make([]byte, 64<<10)
	_, _ = rand.Read(random)
	frame := func(c net.Conn, op ws.OpCode, end bool, b []byte) error {
		return ws.WriteFrame(c, ws.MaskFrame(ws.NewFrame(op, end, b)))
	}
	for what, send := range map[string]func(net.Conn) error{
		"no WebSocket":     func(c net.Conn) error { _, err := c.Write(random); return err },
		"random bytes":     func(c net.Conn) error { return frame(c, ws.OpBinary, true, random) },
		"random after TSC": func(c net.Conn) error { return frame(c, ws.OpBinary, true, append([]byte("TSC1"), random...)) },
		"text":             func(c net.Conn) error { return frame(c, ws.OpText, true, []byte("hello")) },
		"nothing":          func(net.Conn) error { return nil },
		"fragments without end": func(c net.Conn) error {
			err := frame(c, ws.OpBinary, false, random[:1000])
			for err == nil {
				err = frame(c, ws.OpContinuation, false, random[:1000])
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := open()
			go func() { _ = send(c) }()
			_ = ends(t, c)
			others(t, at)
		})
	}
}
