package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"turnstone.dev/turnstone"
)

const (
	testKey    = "dGhlIHNhbXBsZSBub25jZQ==" // RFC 6455, 1.3
	testAccept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
)

// request is a WebSocket upgrade with further lines.
func request(lines ...string) string {
	return "GET /v1/channel?access_token=marker HTTP/1.1\r\nHost: gateway.example\r\n" +
		"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: " + testKey + "\r\n" + strings.Join(append(lines, ""), "\r\n") + "\r\n"
}

// switching is a node's answer with further lines.
func switching(lines ...string) string {
	return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: " + testAccept + "\r\n" +
		strings.Join(append(lines, ""), "\r\n") + "\r\n"
}

// A gateway forwards to a node whose side of the connection the test plays.
type gateway struct {
	*httptest.Server
	nodes chan net.Conn
	ends  chan error
}

func newGateway(t *testing.T, u Upgrade) *gateway {
	t.Helper()
	g := &gateway{nodes: make(chan net.Conn, 8), ends: make(chan error, 8)}
	if u.Dial == nil {
		u.Dial = func(context.Context) (net.Conn, error) {
			a, b := tcpPair(t)
			g.nodes <- b
			return a, nil
		}
	}
	if u.Target == "" {
		u.Host, u.Target = "node", "/channel/sb_1"
	}
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			_, err := u.Forward(w, r)
			g.ends <- err
		}))
	Limit(g.Config)
	g.Start()
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", g.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// head reads up to the empty line.
func head(t *testing.T, c net.Conn) string {
	t.Helper()
	var b []byte
	for !bytes.HasSuffix(b, []byte("\r\n\r\n")) {
		p := make([]byte, 1)
		if _, err := io.ReadFull(c, p); err != nil {
			t.Fatalf("after %q: %v", b, err)
		}
		b = append(b, p...)
	}
	return string(b)
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// TestUpgrade: the node gets what the control plane decided, and nothing else of the client than
// its key and its permitted subprotocols. Bytes of both sides follow.
func TestUpgrade(t *testing.T) {
	g := newGateway(t, Upgrade{
		Header:    http.Header{"Turnstone-Tenant": {"ci"}, "Turnstone-Sandbox": {"sb_1"}},
		Protocols: []string{"turnstone.v1"},
	})
	c := g.dial(t)
	send(t, c, request("Authorization: Bearer marker", "Cookie: marker", "Turnstone-Tenant: marker",
		"Sec-WebSocket-Protocol: bearer.marker, turnstone.v1", "Proxy-Authorization: marker",
		"Sec-WebSocket-Extensions: permessage-deflate", "X-Forwarded-For: marker",
		"Connection: Turnstone-Sandbox", "Te: trailers"))
	n := <-g.nodes
	want := "GET /channel/sb_1 HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n" +
		"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + testKey +
		"\r\nSec-WebSocket-Protocol: turnstone.v1\r\nTurnstone-Sandbox: sb_1\r\n" +
		"Turnstone-Tenant: ci\r\n\r\n"
	if got := head(t, n); got != want {
		t.Errorf("the node got\n%s\nwant\n%s", got, want)
	}
	send(t, n, switching("Sec-WebSocket-Protocol: turnstone.v1", "Server: marker")+"early")
	want = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: " + testAccept + "\r\nSec-WebSocket-Protocol: turnstone.v1\r\n\r\n"
	if got := head(t, c); got != want {
		t.Errorf("the client got\n%s\nwant\n%s", got, want)
	}
	send(t, c, "up")
	closeWrite(t, c)
	if got, err := io.ReadAll(n); err != nil || string(got) != "up" {
		t.Errorf("the node got %q: %v", got, err)
	}
	send(t, n, " down")
	closeWrite(t, n)
	if got, err := io.ReadAll(c); err != nil || string(got) != "early down" {
		t.Errorf("the client got %q: %v", got, err)
	}
	if err := <-g.ends; err != nil {
		t.Error(err)
	}
}

// TestWebSocket: a WebSocket library at both ends speaks through the relay.
func TestWebSocket(t *testing.T) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		for {
			p, op, err := wsutil.ReadClientData(c)
			if err != nil || wsutil.WriteServerMessage(c, op, p) != nil {
				return
			}
		}
	}))
	defer echo.Close()
	g := newGateway(t, Upgrade{Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", echo.Listener.Addr().String())
	}})
	c, _, _, err := ws.Dial(t.Context(), "ws://"+g.Listener.Addr().String()+"/v1/channel")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 125, 70_000} {
		p := pattern(size)
		if err := wsutil.WriteClientBinary(c, p); err != nil {
			t.Fatal(err)
		}
		if got, err := wsutil.ReadServerBinary(c); err != nil || !bytes.Equal(got, p) {
			t.Fatalf("%d bytes: got %d: %v", size, len(got), err)
		}
	}
	_ = c.Close()
	<-g.ends
}

// TestBadRequests: a request that is no plain upgrade is refused, and no node is dialled.
func TestBadRequests(t *testing.T) {
	without := func(field string) string {
		lines := strings.SplitAfter(request(), "\r\n")
		return strings.Join(slices.DeleteFunc(lines, func(l string) bool {
			return strings.HasPrefix(l, field)
		}), "")
	}
	replace := func(from, to string) string { return strings.Replace(request(), from, to, 1) }
	for name, test := range map[string]struct {
		text   string
		status int
	}{
		"a body":         {request("Content-Length: 5") + "hello", 400},
		"an empty body":  {request("Content-Length: 0"), 400},
		"a chunked body": {request("Transfer-Encoding: chunked") + "0\r\n\r\n", 400},
		"two lengths":    {request("Content-Length: 1", "Content-Length: 2") + "a", 400},
		"a length and chunks": {request("Content-Length: 4", "Transfer-Encoding: chunked"),
			400},
		"an unknown encoding":       {request("Transfer-Encoding: x"), 501},
		"Expect":                    {request("Expect: 100-continue"), 417},
		"POST":                      {replace("GET", "POST"), 405},
		"HTTP/1.0":                  {replace("HTTP/1.1", "HTTP/1.0"), 505},
		"no Upgrade":                {without("Upgrade"), 426},
		"another protocol":          {replace("Upgrade: websocket", "Upgrade: h2c"), 426},
		"two protocols":             {replace("e: websocket", "e: websocket, h2c"), 426},
		"two Upgrade fields":        {request("Upgrade: websocket"), 426},
		"no Connection":             {without("Connection"), 400},
		"Connection without it":     {replace("keep-alive, Upgrade", "keep-alive"), 400},
		"no version":                {without("Sec-WebSocket-Version"), 426},
		"an old version":            {replace("Version: 13", "Version: 8"), 426},
		"no key":                    {without("Sec-WebSocket-Key"), 400},
		"two keys":                  {request("Sec-WebSocket-Key: " + testKey), 400},
		"a short key":               {replace(testKey, "AAAA"), 400},
		"a key that is no base64":   {replace(testKey, strings.Repeat("!", 24)), 400},
		"two hosts":                 {request("Host: other"), 400},
		"a space before the colon":  {request("X : y"), 400},
		"a control character":       {request("X: a\x00b"), 400},
		"a name with a line end":    {request("X\r: y"), 400},
		"a head that is too large":  {request("X: " + strings.Repeat("y", 64<<10)), 431},
		"a token of 1 MB":           {request("Authorization: " + strings.Repeat("y", 1<<20)), 431},
		"not HTTP":                  {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
		"the preface of HTTP/2":     {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
		"an absolute path's schema": {replace("/v1/channel", "ws:\x01//x"), 400},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, Upgrade{})
			c := g.dial(t)
			go func() { _, _ = io.WriteString(c, test.text) }()
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != test.status {
				t.Errorf("the status is %d; want %d", answer.StatusCode, test.status)
			}
			if answer.StatusCode == 426 && answer.Header.Get("Sec-WebSocket-Version") != "13" {
				t.Error("426 does not name the version")
			}
			_ = c.Close()
			g.Close()
			select {
			case <-g.nodes:
				t.Error("a node was dialled")
			default:
			}
		})
	}
}

// TestSmuggling: bytes that follow the upgrade before the answer reach no node, whether they come
// with the request or later, and whatever the node answers.
func TestSmuggling(t *testing.T) {
	hidden := "GET /hidden HTTP/1.1\r\nHost: node\r\nTurnstone-Tenant: other\r\n\r\n"
	for name, answer := range map[string]string{
		"switched": switching(), "refused": "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
		"continue": "HTTP/1.1 100 Continue\r\n\r\n",
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s late=%v", name, late), func(t *testing.T) {
				g := newGateway(t, Upgrade{})
				c := g.dial(t)
				var n net.Conn
				if late {
					send(t, c, request())
					n = <-g.nodes
					send(t, c, hidden)
				} else {
					send(t, c, request()+hidden)
					n = <-g.nodes
				}
				if got := head(t, n); strings.Contains(got, "hidden") {
					t.Errorf("the node got %q", got)
				}
				send(t, n, answer)
				got, err := io.ReadAll(n)
				if len(got) > 0 {
					t.Errorf("the node got %q: %v", got, err)
				}
				first, _ := io.ReadAll(c)
				if strings.Contains(string(first), " 101 ") ||
					strings.Count(string(first), "HTTP/1.1 ") != 1 {
					t.Errorf("the client got %q", first)
				}
				if err := <-g.ends; err == nil {
					t.Error("there is no error")
				}
			})
		}
	}
}

// TestBadAnswers: a node that does not switch as asked is not connected to the client.
func TestBadAnswers(t *testing.T) {
	const integrity, unavailable = turnstone.KindIntegrity, turnstone.KindUnavailable
	for name, test := range map[string]struct {
		text   string
		status int
		kind   turnstone.Kind
	}{
		"another accept":     {strings.Replace(switching(), "s3pP", "S3pP", 1), 502, integrity},
		"no upgrade":         {strings.Replace(switching(), "websocket", "h2c", 1), 502, integrity},
		"no connection":      {strings.Replace(switching(), "Connection", "X", 1), 502, integrity},
		"a length":           {switching("Content-Length: 0"), 502, integrity},
		"an extension":       {switching("Sec-WebSocket-Extensions: x"), 502, integrity},
		"a subprotocol":      {switching("Sec-WebSocket-Protocol: x"), 502, integrity},
		"a folded line":      {switching(" folded"), 502, integrity},
		"a bare LF":          {switching("X: a\nY: b"), 502, integrity},
		"HTTP/1.0":           {"HTTP/1.0 101 x\r\n\r\n", 502, integrity},
		"no status":          {"HTTP/1.1 abc x\r\n\r\n", 502, integrity},
		"a long head":        {switching("X: " + strings.Repeat("y", 9<<10)), 502, unavailable},
		"many fields":        {switching(slices.Repeat([]string{"X: y"}, 80)...), 502, integrity},
		"an end":             {"HTTP/1.1 101", 502, unavailable},
		"200":                {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 502, unavailable},
		"a redirect":         {"HTTP/1.1 302 x\r\nLocation: http://x\r\n\r\n", 502, unavailable},
		"the node's own 401": {"HTTP/1.1 401 x\r\nWWW-Authenticate: x\r\n\r\n", 502, unavailable},
		"not found":          {"HTTP/1.1 404 x\r\n\r\n", 404, turnstone.KindNotFound},
		"forbidden":          {"HTTP/1.1 403 x\r\n\r\n", 403, turnstone.KindInvalid},
		"busy": {"HTTP/1.1 429 x\r\nRetry-After: 7\r\n\r\n", 429,
			turnstone.KindExhausted},
		"overloaded": {"HTTP/1.1 503 x\r\nRetry-After: 7\r\n\r\n", 503, unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, Upgrade{})
			c := g.dial(t)
			send(t, c, request())
			n := <-g.nodes
			head(t, n)
			send(t, n, test.text)
			_ = n.(*net.TCPConn).CloseWrite() // the relay may have hung up already
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != test.status {
				t.Errorf("the status is %d; want %d", answer.StatusCode, test.status)
			}
			if after := strings.Contains(test.text, "Retry-After"); after !=
				(answer.Header.Get("Retry-After") == "7") || answer.Header.Get("Location") != "" ||
				answer.Header.Get("Www-Authenticate") != "" {
				t.Errorf("the fields are %v", answer.Header)
			}
			if err := <-g.ends; turnstone.KindOf(err) != test.kind {
				t.Errorf("the error is %s: %v", turnstone.KindOf(err), err)
			}
		})
	}
}

// TestNodeFails: a node that cannot be reached, does not answer or sends its answer byte by byte
// ends in an error of the right kind, and a client that leaves ends the wait.
func TestNodeFails(t *testing.T) {
	short := 100 * time.Millisecond
	drip := func(t *testing.T, n net.Conn) {
		for _, b := range []byte(switching(strings.Repeat("X: y\r\n", 60) + "Y: z")) {
			if _, err := n.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Error("the node could send all of its slow answer")
	}
	for name, test := range map[string]struct {
		upgrade Upgrade
		node    func(t *testing.T, n net.Conn)
		client  func(c net.Conn)
		status  int // 0: the client is gone
		kind    turnstone.Kind
	}{
		"refused": {Upgrade{Dial: func(context.Context) (net.Conn, error) {
			return nil, errors.New("connection refused")
		}}, nil, nil, 502, turnstone.KindUnavailable},
		"slow dial": {Upgrade{DialTime: short, Dial: func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}, nil, nil, 504, turnstone.KindTimeout},
		"silent": {Upgrade{HeadTime: short}, nil, nil, 504, turnstone.KindTimeout},
		"drips":  {Upgrade{HeadTime: short}, drip, nil, 504, turnstone.KindTimeout},
		"the client leaves": {Upgrade{}, nil, func(c net.Conn) { _ = c.Close() }, 0,
			turnstone.KindCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, test.upgrade)
			c := g.dial(t)
			send(t, c, request())
			if test.upgrade.Dial == nil {
				n := <-g.nodes
				head(t, n)
				if test.node != nil {
					test.node(t, n)
				}
			}
			if test.client != nil {
				test.client(c)
			} else if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				t.Fatal(err)
			} else if _ = answer.Body.Close(); answer.StatusCode != test.status {
				t.Errorf("the status is %d; want %d", answer.StatusCode, test.status)
			}
			if err := <-g.ends; turnstone.KindOf(err) != test.kind {
				t.Errorf("the error is %s: %v", turnstone.KindOf(err), err)
			}
		})
	}
}

// TestControlPlaneFields: what the control plane decided cannot inject a field, a request or the
// end of the head.
func TestControlPlaneFields(t *testing.T) {
	for name, u := range map[string]Upgrade{
		"a value with a line end": {Header: http.Header{"X": {"a\r\nY: b"}}},
		"a value with LF":         {Header: http.Header{"X": {"a\nY: b"}}},
		"a value with NUL":        {Header: http.Header{"X": {"a\x00"}}},
		"a name with a colon":     {Header: http.Header{"X: y\r\nZ": {"a"}}},
		"an empty name":           {Header: http.Header{"": {"a"}}},
		"the key":                 {Header: http.Header{"sec-websocket-key": {"a"}}},
		"a length":                {Header: http.Header{"Content-Length": {"5"}}},
		"an encoding":             {Header: http.Header{"transfer-encoding": {"chunked"}}},
		"a large head":            {Header: http.Header{"X": {strings.Repeat("a", 9<<10)}}},
		"a target with a space":   {Host: "n", Target: "/a HTTP/1.1\r\nX: y"},
		"a target of another":     {Host: "n", Target: "http://other/"},
		"a host with a line end":  {Host: "n\r\nX: y", Target: "/"},
		"no host":                 {Host: "", Target: "/"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, u)
			c := g.dial(t)
			send(t, c, request())
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if err := <-g.ends; answer.StatusCode != 500 ||
				turnstone.KindOf(err) != turnstone.KindInternal {
				t.Errorf("the status is %d: %v", answer.StatusCode, err)
			}
			if len(g.nodes) > 0 {
				t.Error("a node was dialled")
			}
		})
	}
}

// TestSlowLoris: clients that send their heads byte by byte are ended, and others are served
// meanwhile.
func TestSlowLoris(t *testing.T) {
	u := Upgrade{Host: "node", Target: "/", Dial: func(context.Context) (net.Conn, error) {
		a, b := tcpPair(t)
		go func() {
			_, _, _ = readHead(b, 1<<10)
			_, _ = io.WriteString(b, switching())
		}()
		return a, nil
	}}
	s := httptest.NewUnstartedServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { _, _ = u.Forward(w, r) }))
	s.Config.ReadHeaderTimeout = 500 * time.Millisecond
	Limit(s.Config)
	s.Start()
	defer s.Close()
	g := &gateway{Server: s}
	ended := make(chan struct{})
	for range 50 {
		c := g.dial(t)
		go func() {
			defer func() { ended <- struct{}{} }()
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for {
				if _, err := io.WriteString(c, "X"); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
	// On a busy machine this client may be as slow as the others.
	for until := time.Now().Add(2 * time.Minute); ; {
		c, got := g.dial(t), make([]byte, len("HTTP/1.1 101 "))
		_, err := io.WriteString(c, request())
		if err == nil {
			_, err = io.ReadFull(c, got)
		}
		if err == nil && string(got) == "HTTP/1.1 101 " {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the client among slow ones got %q: %v", got, err)
		}
	}
	for range 50 {
		<-ended
	}
}

// TestLimitKeepsOwn: limits that a server has are kept.
func TestLimitKeepsOwn(t *testing.T) {
	s := &http.Server{MaxHeaderBytes: 5, ReadHeaderTimeout: 6, IdleTimeout: 7}
	Limit(s)
	if s.MaxHeaderBytes != 5 || s.ReadHeaderTimeout != 6 || s.IdleTimeout != 7 {
		t.Errorf("the limits are %+v", s)
	}
}
