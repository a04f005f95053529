package netstack

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/sniff"
)

// first returns what the guest gets back for its first bytes: "echo", "refused" if it cannot
// connect, or "reset".
func (w *world) first(to string, b []byte) string {
	c, err := w.dial(to)
	if err != nil {
		return "refused"
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	if _, err := c.Write(b); err != nil {
		return "reset"
	}
	got := make([]byte, len(b))
	_, err = io.ReadFull(c, got)
	switch {
	case err == nil && (bytes.Equal(got, b) || bytes.HasPrefix(got, []byte("HTTP/1.1 200 OK\r\n"))):
		return "echo"
	case err != nil && strings.Contains(err.Error(), "reset"):
		return "reset"
	}
	return fmt.Sprint(err)
}

// hello is a web server that greets under every name.
func hello(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(req.Body)
		text := fmt.Sprintf("hello from %s, %d bytes; and a line that is longer than the request",
			req.Host, len(body))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}
}

// TestEachRequestHasItsName checks that each request on a connection that a name opened must be for
// that name.
func TestEachRequestHasItsName(t *testing.T) {
	none := intercept(func(context.Context, net.Conn, network.Target) bool { return false })
	for what, i := range map[string]network.Interceptor{"plain": nil, "intercepted": none} {
		t.Run(what, func(t *testing.T) { eachRequest(t, i) })
	}
}

func eachRequest(t *testing.T, i network.Interceptor) {
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"api.example.com")}, Interceptor: i})
	w.host.Name("api.example.com", "198.51.100.1")
	w.host.Listen("198.51.100.1:80", hello)
	w.ask("api.example.com", dnsmessage.TypeA)
	c := w.mustDial("198.51.100.1:80")
	defer c.Close()
	br := bufio.NewReader(c)
	for _, q := range []struct {
		host, body string
		want       int
	}{{"api.example.com", "", 200}, {"api.example.com:80", "some data", 200},
		{"evil.example", "", 421}, {"api.example.com", "", 200}, {"198.51.100.1", "", 421}} {
		_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", q.host,
			len(q.body), q.body)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(q.host, err)
		}
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != q.want || q.want == 200 &&
			!strings.Contains(string(body), fmt.Sprintf("hello from %s, %d bytes", q.host,
				len(q.body))) {
			t.Errorf("%s: %s %s", q.host, res.Status, body)
		}
	}
	_ = c.Close()
	if r := w.log.lastRefusal(t); r.Address.String() != "198.51.100.1:80" ||
		w.stack.Totals().Refused != 2 {
		t.Errorf("%+v", r)
	}
	if ended := w.log.connections(t, 1)[0]; ended.Sent == 0 || ended.Received == 0 ||
		ended.Host != "api.example.com" {
		t.Errorf("%+v", ended)
	}
}

func TestNamesAtTheConnection(t *testing.T) {
	t.Parallel() // it waits for limits of seconds
	w := newWorld(t, Options{Policy: network.Policy{Only: true,
		Allow: networktest.Rules(t, "api.example.com", "*.example.org:443", "db.example.net:5432",
			"web.example.net:443", "plain.example.net:80", "198.51.100.40:22")}},
		func(l *limits) { l.hello = 3 * time.Second })
	for name, addr := range map[string]string{"api.example.com": "198.51.100.1",
		"a.example.org": "198.51.100.2", "b.example.org": "198.51.100.3",
		"db.example.net": "198.51.100.4", "web.example.net": "198.51.100.5",
		"plain.example.net": "198.51.100.6"} {
		w.host.Name(name, addr)
		for _, port := range []string{"80", "443", "5432", "22", "9000"} {
			w.host.Listen(addr+":"+port, networktest.Echo)
		}
		w.host.Listen(addr+":80", hello)
		if a := addresses(w.ask(name, dnsmessage.TypeA)); len(a) != 1 {
			t.Fatal(name, a)
		}
	}
	w.host.Listen("198.51.100.40:22", networktest.Echo)
	w.host.Listen("198.51.100.50:443", networktest.Echo)
	ssh := []byte("SSH-2.0-x\r\n")
	for _, c := range []struct {
		to     string
		b      []byte
		want   string
		reason string
	}{
		{"198.51.100.1:443", networktest.ClientHello(t, "api.example.com"), "echo", ""},
		{"198.51.100.1:443", networktest.ClientHello(t, "API.example.COM"), "echo", ""},
		{"198.51.100.1:9000", networktest.ClientHello(t, "api.example.com"), "echo", ""},
		{"198.51.100.1:80", networktest.HTTPRequest("api.example.com"), "echo", ""},
		{"198.51.100.1:80", networktest.HTTPRequest("api.example.com:80"), "echo", ""},
		{"198.51.100.1:443", networktest.ClientHello(t, "other.example.com"), "reset",
			"not in allow"},
		{"198.51.100.1:443", networktest.ClientHello(t, ""), "reset", "TLS without a server name"},
		{"198.51.100.1:443", networktest.ClientHello(t, "a.example.org"), "reset",
			"the address was not answered for this name"},
		{"198.51.100.1:80", networktest.HTTPRequest("other.example.com"), "reset", "not in allow"},
		{"198.51.100.1:80", networktest.HTTPRequest("198.51.100.1"), "reset",
			"HTTP without a host name"},
		{"198.51.100.1:80", []byte("GET / HTTP/1.0\r\n\r\n"), "reset", "HTTP without a host name"},
		{"198.51.100.1:80", []byte(
			"CONNECT evil.example:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), "reset",
			"not in allow"},
		{"198.51.100.1:80", []byte(
			"GET http://evil.example/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), "reset",
			"not in allow"},
		{"198.51.100.1:80", []byte(
			"GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example\r\n\r\n"), "reset",
			"the host's name cannot be read"},
		{"198.51.100.1:22", ssh, "reset", "the protocol does not say which host it wants"},
		{"198.51.100.2:443", networktest.ClientHello(t, "a.example.org"), "echo", ""},
		{"198.51.100.2:443", networktest.ClientHello(t, "b.example.org"), "reset",
			"the address was not answered for this name"},
		{"198.51.100.2:80", networktest.HTTPRequest("a.example.org"), "refused", "not in allow"},
		{"198.51.100.4:5432", []byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f}, "echo", ""},
		{"198.51.100.4:5432", networktest.ClientHello(t, "db.example.net"), "echo", ""},
		{"198.51.100.4:5432", networktest.ClientHello(t, "api.example.com"), "reset",
			"the address was not answered for this name"},
		{"198.51.100.4:5433", ssh, "refused", "not in allow"},
		{"198.51.100.5:443", ssh, "reset", "the protocol does not say which host it wants"},
		{"198.51.100.6:80", ssh, "reset", "the protocol does not say which host it wants"},
		{"198.51.100.5:443", networktest.ClientHello(t, "web.example.net")[:100], "reset",
			"the host's name cannot be read"},
		{"198.51.100.5:443", []byte{22, 3, 1, 0xff, 0xff, 1}, "reset",
			"the host's name cannot be read"},
		{"198.51.100.40:22", ssh, "echo", ""},
		// an address from elsewhere
		{"198.51.100.50:443", networktest.ClientHello(t, "api.example.com"), "refused",
			"not in allow"},
	} {
		w.log.mu.Lock()
		w.log.refused = nil
		w.log.mu.Unlock()
		got := w.first(c.to, c.b)
		if got != c.want {
			t.Errorf("%s %.30q: %s, want %s", c.to, c.b, got, c.want)
		}
		if c.reason != "" {
			if r := w.log.lastRefusal(t); r.Reason != c.reason || r.Protocol != "tcp" ||
				r.Address.String() != c.to {
				t.Errorf("%s %.30q: %+v, want %s", c.to, c.b, r, c.reason)
			}
		}
	}
}

// TestSlowHello checks that the bytes of a name may come one at a time, and that the complete
// greeting still arrives.
func TestSlowHello(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"api.example.com")}})
	w.host.Name("api.example.com", "198.51.100.1")
	w.host.Listen("198.51.100.1:443", networktest.Echo)
	w.ask("api.example.com", dnsmessage.TypeA)
	w.host.Listen("198.51.100.1:80", hello)
	for _, hello := range [][]byte{networktest.ClientHello(t, "api.example.com")[:300],
		networktest.ClientHello(t, "api.example.com"), networktest.HTTPRequest("api.example.com")} {
		to, want := "198.51.100.1:443", hello
		if hello[0] == 'G' {
			to, want = "198.51.100.1:80", []byte("HTTP/1.1 200 OK")
		}
		c := w.mustDial(to)
		for i := range hello {
			if _, err := c.Write(hello[i : i+1]); err != nil {
				t.Fatal(err)
			}
			if i < 5 || i == len(hello)-2 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		if len(hello) == 300 { // and no more of it
			_ = c.CloseWrite()
			if _, err := c.Read(make([]byte, 1)); err == nil ||
				!strings.Contains(err.Error(), "reset") {
				t.Fatal(err)
			}
			continue
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%q, %v", got, err)
		}
		_ = c.Close()
	}
}

// TestServerSpeaksFirst checks that a rule with a name and this port is enough if the host sends
// first.
func TestServerSpeaksFirst(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"git.example.com:22", "mail.example.com")}},
		func(l *limits) { l.hello = 300 * time.Millisecond })
	w.host.Name("git.example.com", "198.51.100.1")
	w.host.Name("mail.example.com", "198.51.100.2")
	banner := func(c net.Conn) { _, _ = c.Write([]byte("220 hello\r\n")); networktest.Echo(c) }
	w.host.Listen("198.51.100.1:22", banner)
	w.host.Listen("198.51.100.2:25", banner)
	w.ask("git.example.com", dnsmessage.TypeA)
	w.ask("mail.example.com", dnsmessage.TypeA)
	c := w.mustDial("198.51.100.1:22")
	if _, err := io.ReadFull(c, make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("EHLO x\r\n")) // a possible request is held until its line ends
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	c = w.mustDial("198.51.100.2:25")
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil ||
		!strings.Contains(err.Error(), "reset") {
		t.Fatalf("%d, %v", n, err)
	}
	if r := w.log.lastRefusal(t); r.Reason != "the client did not say which host it wants" ||
		r.Host != "mail.example.com" {
		t.Fatalf("%+v", r)
	}
}

// TestDeniedNameAtTheConnection checks that a denied name is also denied at the connection,
// wherever the address is from.
func TestDeniedNameAtTheConnection(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Deny: networktest.Rules(t, "bad.example",
		"half.example:443")}})
	w.host.Name("half.example", "198.51.100.2")
	for _, to := range []string{"198.51.100.1:443", "198.51.100.1:80", "198.51.100.2:443",
		"198.51.100.2:80"} {
		w.host.Listen(to, networktest.Echo)
	}
	w.host.Listen("198.51.100.2:80", hello) // requests are checked one by one
	w.ask("half.example", dnsmessage.TypeA)
	for _, c := range []struct {
		to   string
		b    []byte
		want string
	}{
		{"198.51.100.1:443", networktest.ClientHello(t, "bad.example"), "reset"},
		{"198.51.100.1:443", networktest.ClientHello(t, "good.example"), "echo"},
		{"198.51.100.1:80", networktest.HTTPRequest("bad.example"), "reset"},
		{"198.51.100.1:80", []byte("anything\n"), "echo"},
		{"198.51.100.2:443", networktest.ClientHello(t, "half.example"), "refused"},
		{"198.51.100.2:80", networktest.HTTPRequest("half.example"), "echo"},
	} {
		if got := w.first(c.to, c.b); got != c.want {
			t.Errorf("%s: %s, want %s", c.to, got, c.want)
		}
	}
}

func TestObservedNames(t *testing.T) {
	w := newWorld(t, Options{})
	w.host.Name("resolved.example", "198.51.100.2")
	w.host.Listen("198.51.100.1:443", networktest.Echo)
	w.host.Listen("198.51.100.2:9", networktest.Echo)
	w.ask("resolved.example", dnsmessage.TypeA)
	if got := w.first("198.51.100.1:443",
		networktest.ClientHello(t, "named.example")); got != "echo" {
		t.Fatal(got)
	}
	if c := w.log.connections(t, 1)[0]; c.Host != "named.example" || c.End.Before(c.Start) {
		t.Fatalf("%+v", c)
	}
	if got := w.first("198.51.100.2:9", []byte("binary")); got != "echo" {
		t.Fatal(got)
	}
	if c := w.log.connections(t, 2)[1]; c.Host != "resolved.example" {
		t.Fatalf("%+v", c)
	}
}

type intercept func(ctx context.Context, guest net.Conn, to network.Target) bool

func (f intercept) Intercept(ctx context.Context, guest net.Conn, to network.Target) bool {
	return f(ctx, guest, to)
}

func TestInterceptor(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"api.example.com", "ssh.example.com:22", "198.51.100.9")},
		Interceptor: intercept(func(_ context.Context, guest net.Conn, to network.Target) bool {
			mu.Lock()
			seen = append(seen, to.Address.String()+" "+to.Name)
			mu.Unlock()
			if to.Name != "api.example.com" {
				return false
			}
			b, _ := io.ReadAll(guest)
			_, _ = guest.Write(bytes.ToUpper(b))
			_ = guest.(closeWriter).CloseWrite()
			return true
		})})
	w.host.Name("api.example.com", "198.51.100.1")
	w.host.Name("ssh.example.com", "198.51.100.2")
	w.host.Listen("198.51.100.2:22",
		func(c net.Conn) { _, _ = c.Write([]byte("hello")); networktest.Echo(c) })
	w.host.Listen("198.51.100.9:443", networktest.Echo)
	w.ask("api.example.com", dnsmessage.TypeA)
	w.ask("ssh.example.com", dnsmessage.TypeA)
	c := w.mustDial("198.51.100.1:80")
	_, _ = c.Write([]byte("get / http/1.1\r\nhost: x\r\n\r\n"))
	_ = c.Close()

	c = w.mustDial("198.51.100.1:80")
	_, _ = c.Write(networktest.HTTPRequest("api.example.com"))
	_ = c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil ||
		string(b) != strings.ToUpper(string(networktest.HTTPRequest("api.example.com"))) {
		t.Fatalf("%q, %v", b, err)
	}
	_ = c.Close()
	c = w.mustDial("198.51.100.2:22")
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if got := w.first("198.51.100.9:443",
		networktest.ClientHello(t, "any.example")); got != "echo" {
		t.Fatal(got)
	}
	// The host does not listen: the guest is reset.
	if got := w.first("198.51.100.9:444",
		networktest.ClientHello(t, "any.example")); got != "reset" {
		t.Fatal(got)
	}
	mu.Lock()
	defer mu.Unlock()
	want := "198.51.100.1:80 api.example.com, 198.51.100.2:22 ssh.example.com, 198.51.100.9:443 " +
		"any.example, 198.51.100.9:444 any.example"
	if got := strings.Join(seen, ", "); got != want {
		t.Fatal(got)
	}
	if dials := strings.Join(w.host.Dials(), ", "); strings.Contains(dials, "198.51.100.1:") {
		t.Fatal(dials)
	}
}

// TestLateGreetingIsLookedAt checks that a guest that is silent for a while is checked when it
// sends.
func TestLateGreetingIsLookedAt(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Deny: networktest.Rules(t, "bad.example")},
		Interceptor: intercept(func(context.Context, net.Conn,
			network.Target) bool {
			return false
		})})
	w.host.Listen("198.51.100.1:443", networktest.Echo)
	c := w.mustDial("198.51.100.1:443")
	defer c.Close()
	time.Sleep(interceptWait + 300*time.Millisecond) //wait: a greeting that is not late is checked, too
	_, _ = c.Write(networktest.ClientHello(t, "bad.example"))
	if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add(networktest.ClientHello(f, "api.example.com"), uint8(7))
	f.Add(networktest.ClientHello(f, ""), uint8(0))
	f.Add(networktest.HTTPRequest("api.example.com:80"), uint8(1))
	f.Add([]byte("GET / HTTP/1.1\r\n"+strings.Repeat("X: y\r\n", 100)+"\r\n"), uint8(200))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), uint8(0))
	f.Add([]byte("EHLO there\r\n"), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, chunk uint8) {
		parse := func(chunk int) (network.Greeting, []byte, int) {
			rest := b
			r := &recorder{from: func(p []byte) (int, error) {
				if len(rest) == 0 {
					return 0, io.EOF
				}
				n := copy(p, rest[:min(len(rest), chunk)])
				rest = rest[n:]
				return n, nil
			}}
			g := parseGreeting(r)
			return g, r.seen, len(rest)
		}
		g, seen, rest := parse(int(chunk) + 1)
		if !bytes.Equal(seen, b[:len(b)-rest]) {
			t.Fatal("what was looked at is not what was sent")
		}
		if len(seen) > sniff.MaxGreeting {
			t.Fatal(len(seen))
		}
		if g.Name != "" && (network.CheckName(g.Name) != nil || g.Name != strings.ToLower(g.Name)) {
			t.Fatalf("%q", g.Name)
		}
		if g.Name != "" && g.Protocol != network.GreetingTLS && g.Protocol != network.GreetingHTTP {
			t.Fatalf("%+v", g)
		}
		// The division into pieces does not matter.
		if whole, _, _ := parse(sniff.MaxGreeting); whole != g {
			t.Fatalf("%+v in pieces of %d, %+v at once", g, int(chunk)+1, whole)
		}
	})
}

// TestRequestsInOtherForms checks that a first request in another form cannot hide further
// requests: a request with a whole URL, a tunnel through the host to itself, and a change to
// HTTP/2.
func TestRequestsInOtherForms(t *testing.T) {
	for first, want := range map[string]int{
		"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n": 200,
		"GET http://api.example.com/ HTTP/1.1\r\nHost: evil.example\r\n\r\n":    200,
		"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n": 405,
		"GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\n" +
			"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n": 200,
		"GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\n" +
			"Upgrade: websocket, TLS/1.0\r\n\r\n": 200,
	} {
		w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
			"api.example.com")}})
		w.host.Name("api.example.com", "198.51.100.1")
		w.host.Listen("198.51.100.1:80", upgrading)
		w.ask("api.example.com", dnsmessage.TypeA)
		c := w.mustDial("198.51.100.1:80")
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		br := bufio.NewReader(c)
		_, _ = io.WriteString(c, first)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatalf("%q: %v", first, err)
		}
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != want || want == 200 &&
			!strings.Contains(string(body), "hello from api.example.com") {
			t.Errorf("%q: %s %s", first, res.Status, body)
		}
		_, _ = c.Write(networktest.HTTPRequest("evil.example"))
		if res, err = http.ReadResponse(br, nil); err == nil {
			body, _ = io.ReadAll(res.Body)
			if res.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("%q, and then a request to another host: %s %s", first, res.Status, body)
			}
		}
		_ = c.Close()
	}
}

// upgrading is hello, and also changes to any requested protocol.
func upgrading(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if to := req.Header.Get("Upgrade"); to != "" {
			_, _ = fmt.Fprintf(c,
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
				to)
			continue
		}
		text := "hello from " + req.Host
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}
}
