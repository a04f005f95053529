package e2b

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAnswerBeforeTheBody: a server in a sandbox begins its answer before it has the request's body,
// and the caller gets all of the answer.
func TestAnswerBeforeTheBody(t *testing.T) {
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "begun\n")
		_ = c.Flush()
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v", body, err)
	}))
	defer guest.Close()
	d := &Door{}
	f := Found{Dial: func(ctx context.Context, _ uint16) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", guest.Listener.Addr().String())
	}}
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.servePort(w, r, f, 80)
	}))
	defer door.Close()
	c, err := net.Dial("tcp", door.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: sandbox\r\nContent-Length: 2\r\n\r\na"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(answer.Body)
	if line, err := in.ReadString('\n'); line != "begun\n" {
		t.Fatalf("%q %v", line, err)
	}
	if _, err := io.WriteString(c, "b"); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(in)
	if err != nil || strings.TrimSpace(string(rest)) != "ab <nil>" {
		t.Fatalf("%q %v", rest, err)
	}
}

// guest returns a sandbox whose port answers each connection with text, without reading a request.
func guest(t *testing.T, text string) Found {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.WriteString(c, text)
				}
			}()
		}
	}()
	return Found{Dial: func(ctx context.Context, _ uint16) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}}
}

// TestAnswersOfGuests: what a guest's port answers is passed on as one answer for this port alone, and
// what is not one fails.
func TestAnswersOfGuests(t *testing.T) {
	const hint = "HTTP/1.1 103 Early Hints\r\nSet-Cookie: a=b; Domain=door.example\r\nX-Hint: 1\r\n\r\n"
	const end = "Connection: close\r\n\r\n"
	for name, c := range map[string]struct {
		text   string
		status int
		body   string
	}{
		"plain":      {"HTTP/1.1 200 OK\r\n" + end + "yes", 200, "yes"},
		"a hint":     {hint + "HTTP/1.1 200 OK\r\n" + end + "yes", 200, "yes"},
		"100s":       {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 5) + "HTTP/1.1 200 OK\r\n" + end, 200, ""},
		"hints only": {strings.Repeat(hint, 10_000), 502, ""},
		"a domain's fields": {"HTTP/1.1 200 OK\r\nAlt-Svc: h2=\":1\"\r\nClear-Site-Data: \"*\"\r\n" +
			"Strict-Transport-Security: max-age=9; includeSubDomains\r\n" + end, 200, ""},
		"many fields":        {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: 1\r\n", 100_000) + end, 502, ""},
		"a long field":       {"HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 1<<20) + "\r\n" + end, 502, ""},
		"two lengths":        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n" + end + "ab", 502, ""},
		"length and chunks":  {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n" + end + "2\r\nab\r\n0\r\n\r\n", 200, "ab"},
		"a coding":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n" + end, 502, ""},
		"a second answer":    {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb", 200, "a"},
		"unasked protocol":   {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 502, ""},
		"nothing":            {"", 502, ""},
		"something":          {"SSH-2.0-x\r\n", 502, ""},
		"a field of a line":  {"HTTP/1.1 200 OK\r\nX-A: a\rX-B: b\r\n" + end, 502, ""},
		"a status of no one": {"HTTP/1.1 99999 x\r\n" + end, 502, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := guest(t, c.text)
			door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Content-Type-Options", "nosniff")
				(&Door{}).servePort(w, r, f, 80)
			}))
			defer door.Close()
			conn, err := net.Dial("tcp", door.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if res.StatusCode != c.status || c.status == 200 && (string(body) != c.body || err != nil) {
				t.Errorf("%d %.80q %v", res.StatusCode, body, err)
			}
			if got := res.Header.Get("X-Content-Type-Options"); got != "nosniff" {
				t.Errorf("the door's own field is %q", got)
			}
			for _, name := range append(beyond, "Set-Cookie", "X-Hint") {
				if got := res.Header.Get(name); got != "" {
					t.Errorf("%s: %s", name, got)
				}
			}
		})
	}
}

// TestUpgrades: a WebSocket of a port reaches the guest, and bytes flow in both directions.
func TestUpgrades(t *testing.T) {
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("got " + r.Header.Get(trafficHeader) + line)
		_ = rw.Flush()
	}))
	defer guest.Close()
	f := Found{Dial: func(ctx context.Context, _ uint16) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", guest.Listener.Addr().String())
	}}
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(&Door{}).servePort(w, r, f, 80)
	}))
	defer door.Close()
	c, err := net.Dial("tcp", door.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		trafficHeader+": secret\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", res, err)
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := in.ReadString('\n'); line != "got hello\n" {
		t.Errorf("%q %v", line, err)
	}
}

// TestCookiesOfGuests: a guest sets no cookies for the sandboxes of others.
func TestCookiesOfGuests(t *testing.T) {
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=b; Path=/; dOmain = door.example; HttpOnly")
		w.Header().Add("Set-Cookie", "domain=x;Domain")
	}))
	defer guest.Close()
	f := Found{Dial: func(ctx context.Context, _ uint16) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", guest.Listener.Addr().String())
	}}
	w := httptest.NewRecorder()
	(&Door{}).servePort(w, httptest.NewRequest(http.MethodGet, "/", nil), f, 80)
	if got := w.Header()["Set-Cookie"]; len(got) != 2 || got[0] != "a=b; Path=/; HttpOnly" ||
		got[1] != "domain=x" {
		t.Errorf("%q", got)
	}
}
