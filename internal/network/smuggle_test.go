package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// A lenientServer answers requests, skips what servers skip in front of them, and notes the
// bytes that it got. What it notes is judged by hosts.
type lenientServer struct {
	mu  sync.Mutex
	got [][]byte // of each connection
}

func (s *lenientServer) serve(c net.Conn) {
	defer c.Close()
	s.mu.Lock()
	at := len(s.got)
	s.got = append(s.got, nil)
	s.mu.Unlock()
	br := bufio.NewReader(io.TeeReader(c, writerFunc(func(p []byte) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got[at] = append(s.got[at], p...)
		return len(p), nil
	})))
	for {
		req, err := readLenient(br)
		if err != nil {
			_, _ = io.Copy(io.Discard, br)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// readLenient reads a request as a server does that skips white space in front of one.
func readLenient(br *bufio.Reader) (*http.Request, error) {
	for {
		b, err := br.ReadByte()
		if err != nil {
			return nil, err
		}
		if !strings.ContainsRune("\r\n \t\v\f", rune(b)) {
			_ = br.UnreadByte()
			return http.ReadRequest(br)
		}
	}
}

// hosts returns the hosts of the requests that the server got: as net/http reads them, and as
// one would that splits lines at any white space and lets each Host count.
func (s *lenientServer) hosts() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.got {
		br := bufio.NewReader(bytes.NewReader(b))
		for {
			req, err := readLenient(br)
			if err != nil {
				break
			}
			all = append(all, req.Host)
			if strings.EqualFold(req.Method, "CONNECT") {
				all = append(all, "tunnel to "+req.RequestURI)
			}
			_, _ = io.Copy(io.Discard, req.Body)
		}
		all = append(all, looseHosts(b)...)
	}
	return all
}

// looseHosts is the most that b could name: its first request, of any method and with any
// version or none; and when that is none of a kind that everybody reads, requests behind it.
func looseHosts(b []byte) (all []string) {
	latin := make([]rune, len(b))
	for i, c := range b {
		latin[i] = rune(c)
	}
	if len(b) > 2 && b[0] == recordHandshake && b[1] == 3 {
		return nil // no server reads anything but TLS from there
	}
	text := strings.TrimSpace(string(latin))
	blocks := []string{text}
	if _, err := readLenient(bufio.NewReader(bytes.NewReader(b))); err != nil {
		blocks = strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n")
	}
	for _, block := range blocks {
		all = append(all, blockHosts(strings.Split(block, "\n"))...)
	}
	return all
}

// blockHosts are the hosts that lines without an empty one could name to a server that skips
// lines which it does not know.
func blockHosts(lines []string) (all []string) {
	words := false
	for i, line := range lines {
		if name, value, ok := strings.Cut(line, ":"); ok && words && strings.EqualFold(strings.TrimSpace(name), "Host") {
			all = append(all, strings.TrimSpace(value))
		}
		if i > 0 && strings.TrimSpace(line) == "" {
			return all
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		words = true
		end := fields[len(fields)-1]
		name, number, versioned := strings.Cut(end, "/")
		versioned = versioned && name != "" && strings.Trim(strings.ToUpper(name), "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" && strings.Trim(number, "0123456789.") == "" && number != "" && number[0] != '.'
		if scheme, rest, ok := strings.Cut(fields[len(fields)-2], "://"); ok && versioned && len(end) <= 16 && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")) {
			host, _, _ := strings.Cut(rest, "/")
			all = append(all, host)
		}
		if end == "HTTP/2.0" {
			all = append(all, "HTTP/2")
		}
	}
	return all
}

// smuggling are ways to send a request to evil.example behind the policy's back.
var smuggling = []string{
	"%[1]sGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET http://evil.example/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"%[1]sCONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sCONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]s\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\r\n|%[1]sGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\n\n|GE|T / HTTP/1.1\nHost: evil.example\n\n",
	"%[1]sGET / HTTP/1.1\nHost: evil.example\n\n",
	"%[1]sget / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGet\t/ http/1.1\r\nhost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nX: y\r\n Host: z\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost:\r\n evil.example\r\n\r\n",
	"G|E|T| / HTTP/1.1\r\nHo|st: evil.example\r\n\r\n",
	"%[1]sPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n|GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.0\r\n\r\n",
	"%[1]sGET http://evil.example/\r\n",
	"%[1]sPOST /E\r\nHost: evil.example\r\n\r\n",
	"%[1]sPUT /E\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\nok",
	"%[1]sOPTIONS http://evil.example/E\r\n\r\n",
	"%[1]sPOST E\r\n|Ho|st: evil.example\r\n\r\n",
	"%[1]sGET /E RTSP/1.0\r\nHost: evil.example\r\n\r\n",
	"%[1]sSOURCE /E ICE/1.0\r\nX: y\r\nhOsT : evil.example\r\n\r\n",
	"%[1]sOPTIONS rtsp://x/ RTSP/1.0\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET http://evil.example/ RTSP/1.0\r\n\r\n",
	"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n%[1]sGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c            |GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"hello\r\n|GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"hello\r\nPOST E\r\nHost: evil.example\r\n\r\n",
	"hello\r\n|PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n evil.example",
	"hello\r\n\r\nGET http://evil.example/ HTTP/1.1\r\n\r\n",
	"\x00GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\xef\xbb\xbfGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\x16GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com:.evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com:80,evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: [api.example.com]:evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: [api.example.com]\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket h2c\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
}

const goodRequest = "GET /good HTTP/1.1\r\nHost: api.example.com\r\n\r\n"

// send writes what has a bar at each pause.
func send(c net.Conn, text string) {
	for i, part := range strings.Split(text, "|") {
		if i > 0 {
			time.Sleep(20 * time.Millisecond)
		}
		if _, err := io.WriteString(c, part); err != nil {
			return
		}
	}
}

// TestNoRequestIsSmuggled sends requests to another host over connections that are open to one,
// in every way that connections are served, first and after a good request.
func TestNoRequestIsSmuggled(t *testing.T) {
	ca, upstream := testCA(t), testCA(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(upstream.PEM())
	for path, c := range map[string]struct {
		allow     string
		to        string
		encrypted bool
		proxy     func() *ProxyOptions
	}{
		"plain":            {allow: "api.example.com", to: "198.51.100.1:80"},
		"a rule's port":    {allow: "api.example.com:8080", to: "198.51.100.1:8080"},
		"recorded":         {allow: "api.example.com", to: "198.51.100.1:80", proxy: func() *ProxyOptions { return &ProxyOptions{Recorder: NewRecorder(RecorderOptions{Out: io.Discard})} }},
		"recorded, a port": {allow: "api.example.com:8080", to: "198.51.100.1:8080", proxy: func() *ProxyOptions { return &ProxyOptions{Recorder: NewRecorder(RecorderOptions{Out: io.Discard})} }},
		"a secret header": {allow: "0.0.0.0/0", to: "198.51.100.1:80", proxy: func() *ProxyOptions {
			return &ProxyOptions{Headers: []SecretHeader{testHeader(t, "http://api.example.com=X-Other: sesame-open")}}
		}},
		"opened TLS":         {allow: "api.example.com", to: "198.51.100.1:443", encrypted: true, proxy: func() *ProxyOptions { return &ProxyOptions{CA: ca, Roots: roots, Open: true} }},
		"opened TLS, a port": {allow: "api.example.com:8443", to: "198.51.100.1:8443", encrypted: true, proxy: func() *ProxyOptions { return &ProxyOptions{CA: ca, Roots: roots, Open: true} }},
		"opened for a secret": {allow: "0.0.0.0/0", to: "198.51.100.1:443", encrypted: true, proxy: func() *ProxyOptions {
			return &ProxyOptions{CA: ca, Roots: roots, Headers: []SecretHeader{testHeader(t, "api.example.com=X-Other: sesame-open")}}
		}},
	} {
		t.Run(path, func(t *testing.T) {
			host := newFakeHost(t)
			opts := Options{Policy: Policy{Only: true, Allow: rules(t, c.allow, "api.example.com")}, Dialer: host, Resolver: host}
			if c.proxy != nil {
				p := c.proxy()
				p.Dialer, p.Resolver = host, host
				opts.Interceptor = NewProxy(*p)
			}
			w := newWorld(t, opts)
			host.name("api.example.com", "198.51.100.1")
			s := &lenientServer{}
			host.listen(c.to, func(conn net.Conn) {
				if c.encrypted {
					conn = tls.Server(conn, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return upstream.Leaf(h.ServerName) }})
				}
				s.serve(conn)
			})
			w.ask("api.example.com", dnsmessage.TypeA)
			var all sync.WaitGroup
			for _, text := range smuggling {
				for _, before := range []string{"", goodRequest} {
					if c.allow == "0.0.0.0/0" && (before == "" || !strings.Contains(text, "%[1]s")) {
						continue // it may begin with any host, and has no secret then
					}
					all.Go(func() {
						g, err := w.dial(c.to)
						if err != nil {
							t.Error(err)
							return
						}
						defer g.Close()
						var conn net.Conn = g
						_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
						if c.encrypted {
							conn = tls.Client(conn, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true})
						}
						whole := text
						if strings.Contains(whole, "%[1]s") {
							whole = fmt.Sprintf(whole, before)
						}
						send(conn, whole)
						_ = conn.(closeWriter).CloseWrite()
						_, _ = io.Copy(io.Discard, conn)
					})
				}
			}
			all.Wait()
			good := false
			for _, h := range s.hosts() {
				good = good || h == "api.example.com"
				if h != "api.example.com" {
					t.Errorf("a request to %q arrived", h)
				}
			}
			if !good {
				t.Error("no request arrived at all")
			}
		})
	}
}

// FuzzGuestRequests holds that whatever bytes a guest sends, in whatever pieces, no request to
// a host that the policy refuses arrives.
func FuzzGuestRequests(f *testing.F) {
	for i, text := range smuggling {
		if strings.Contains(text, "%[1]s") {
			text = fmt.Sprintf(text, goodRequest[:len(goodRequest)*(i%2)])
		}
		f.Add([]byte(text), []byte{1, 3, 0, 7}, uint8(i))
	}
	f.Add([]byte("a: b\n\x1cHost\x85:evil.example\n\n"), []byte{1, 1, 1, 1}, uint8(0))
	f.Add([]byte("POST\r/E\rHost: evil.example\r\n\r\n"), []byte{5}, uint8(2))
	f.Add([]byte("EHLO there\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), []byte{9}, uint8(0))
	f.Fuzz(func(t *testing.T, b, cuts []byte, mode uint8) {
		if len(b) > 8<<10 {
			return
		}
		opts := ProxyOptions{Resolver: newFakeHost(t)}
		c := &connection{to: netip.MustParseAddrPort("198.51.100.1:80"), scheme: "http"}
		if mode&1 != 0 {
			opts.Recorder = NewRecorder(RecorderOptions{Out: io.Discard})
		}
		if mode&2 != 0 {
			c.scheme = "https"
		}
		c.name = "api.example.com"
		if mode&4 != 0 {
			opts.Headers = []SecretHeader{{Scheme: c.scheme, Host: "api.example.com", Name: "X-Other", Value: "sesame"}}
		} else {
			j := newJudge(Policy{Only: true, Allow: []Rule{{Name: "api.example.com", Port: 80}}}, edgeIsOwn)
			known := newNames(1, time.Hour)
			known.add(c.to.Addr(), "api.example.com")
			c.request = func(host string) string { return j.check(c.to, []string{"api.example.com"}).request(host, known) }
			if mode&8 != 0 {
				c.name = ""
			}
		}
		c.p = NewProxy(opts)
		guest, ours := socketPair(t)
		up, theirs := socketPair(t)
		s := &lenientServer{}
		done := make(chan struct{}, 2)
		go func() {
			s.serve(theirs)
			done <- struct{}{}
		}()
		go func() {
			defer func() { done <- struct{}{} }()
			go func() { _, _ = io.Copy(io.Discard, guest) }()
			for rest, i := b, 0; len(rest) > 0; i++ {
				n := len(rest)
				if i < len(cuts) {
					n = min(n, 1+int(cuts[i]))
				}
				if _, err := guest.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
			_ = guest.(closeWriter).CloseWrite()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		stop := context.AfterFunc(ctx, func() { _, _ = ours.Close(), up.Close() })
		c.carry(ctx, newEager(ours), newEager(up))
		if !stop() {
			t.Fatal("it takes too long")
		}
		_, _ = ours.Close(), up.Close()
		<-done
		<-done
		_ = guest.Close()
		for _, h := range s.hosts() {
			if name := hostOnly(h); name != "api.example.com" {
				t.Fatalf("a request to %q arrived, of %q", h, s.got)
			}
		}
	})
}

// TestOtherProtocolsArePassedOn holds that what is no HTTP is not held back, also where
// requests are looked at.
func TestOtherProtocolsArePassedOn(t *testing.T) {
	w := newWorld(t, Options{Policy: Policy{Only: true, Allow: rules(t, "db.example.com:5000")}}, func(l *limits) { l.hello = time.Minute })
	w.host.name("db.example.com", "198.51.100.1")
	w.host.listen("198.51.100.1:5000", echo)
	w.ask("db.example.com", dnsmessage.TypeA)
	for what, b := range map[string]string{
		"ssh": "SSH-2.0-OpenSSH_9.6\r\n", "PostgreSQL": "\x00\x00\x00\x08\x04\xd2\x16\x2f", "LDAP": "0\x0c\x02\x01\x01`\x07\x02\x01\x03\x04\x00\x80\x00",
		"LDAP of 32 bytes": "0 \x02\x01\x01`\x1b\x02\x01\x03", "redis": "*1\r\n$4\r\nPING\r\n", "memcached": "get key\r\n", "git": "0032git-upload-pack /x\x00host=y\x00",
		"MQTT": "\x10\x0c\x00\x04MQTT", "NATS": "CONNECT {}\r\n", "IRC": "NICK me\r\n", "finger": "\r\n", "MongoDB": "*\x00\x00\x00\x01", "AMQP": "AMQP\x00\x00\x09\x01",
		"RTSP": "OPTIONS rtsp://x/ RTSP/1.0\r\n", "RFB": "RFB 003.008\n", "blanks first": " \r\n\x00x",
	} {
		c := w.mustDial("198.51.100.1:5000")
		_, _ = io.WriteString(c, b)
		got := make([]byte, len(b))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != b {
			t.Errorf("%s: %q, %v", what, got, err)
		}
		_ = c.Close()
	}
}

// TestOtherProtocolsGoOn holds that what is no HTTP goes on for as long as it likes, in lines that
// look like those of requests, too.
func TestOtherProtocolsGoOn(t *testing.T) {
	for what, b := range map[string]string{
		"STOMP": "CONNECT\naccept-version:1.0,1.1,1.2\nhost:broker\n\n\x00", "memcached": "get /a/b\r\nget http://x/\r\n", "FTP": "USER x\r\nCWD /a\r\nRETR /b\r\n",
		"RTSP": "OPTIONS rtsp://x/ RTSP/1.0\r\nCSeq: 1\r\n\r\nSETUP rtsp://x/1 RTSP/1.0\r\nCSeq: 2\r\n\r\n", "SIP": "REGISTER sip:x SIP/2.0\r\nVia: SIP/2.0/TCP x\r\n\r\n",
		"SMTP": "EHLO me\r\nDATA\r\nSubject: see http://x/ and HTTP/1.1 there\r\n\r\nHost: x\r\n.\r\n", "SQL": "Q\x00\x00\x00\x20select 'http://x/' /* HTTP/1.1 */\x00",
		"a long line": strings.Repeat("words ", 20000) + "HTTP/\n", "lines": strings.Repeat("a line\r\nhosts: 1\r\nmy host:\r\n", 3000),
	} {
		for cut := 1; cut <= len(b); cut = cut*7 + 1 {
			var s requestScan
			for rest := b; len(rest) > 0; rest = rest[min(cut, len(rest)):] {
				if s.saw([]byte(rest[:min(cut, len(rest))])) {
					t.Errorf("%s, in pieces of %d: taken for a request at %.40q", what, cut, rest)
					break
				}
			}
		}
	}
}

// TestOddHosts holds that a host is one to every reader, or none.
func TestOddHosts(t *testing.T) {
	for host, want := range map[string]string{
		"API.example.com": "api.example.com", "api.example.com.:80": "api.example.com", "192.0.2.1:8080": "192.0.2.1", "[2001:db8::1]": "2001:db8::1", "[2001:db8::1]:80": "2001:db8::1", "a_b:1": "a_b",
		"ok.test:.evil.test": "", "ok.test:80,evil.test": "", "ok.test,evil.test": "", "[ok.test]:evil.test": "", "[ok.test]": "", "[::1]x": "", "[::1": "", "[::1%x]": "", "ok.test:80:80": "", "ok.test:+80": "", "ok.test:123456": "", "a b": "", "a@b": "", "a/b": "",
	} {
		if got := hostOnly(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
	w := newWorld(t, Options{Policy: Policy{Only: true, Allow: rules(t, "ok.test:8090")}})
	w.host.name("ok.test", "198.51.100.1")
	w.host.listen("198.51.100.1:8090", hello)
	w.ask("ok.test", dnsmessage.TypeA)
	c := w.mustDial("198.51.100.1:8090")
	defer c.Close()
	answers(t, c, []answered{{"ok.test:8090", 200}, {"ok.test:.evil.test", 400}, {"ok.test:80,evil.test", 400}, {"[ok.test]:evil.test", 400}, {"ok.test", 200}})
}

// TestUpgradesThatHideRequests holds that no way to write an Upgrade header hides one of them.
func TestUpgradesThatHideRequests(t *testing.T) {
	for upgrade, want := range map[string]bool{"websocket": false, "echo, x": false, "h2c": true, "websocket h2c": true, "websocket;H2C": true, "websocket,\tTLS/1.0": true, "websocket/13 HTTP/2": true} {
		if hidesRequests(upgrade) != want {
			t.Errorf("%q: %v", upgrade, !want)
		}
	}
}

// TestOnlyHTTPInOpenedTLS holds that on a port of the web nothing but HTTP goes through opened TLS,
// whichever side begins.
func TestOnlyHTTPInOpenedTLS(t *testing.T) {
	ca, upstream := testCA(t), testCA(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(upstream.PEM())
	for port, want := range map[string]bool{"443": false, "993": true} {
		host := newFakeHost(t)
		w := newWorld(t, Options{Policy: Policy{Only: true, Allow: rules(t, "ok.test")}, Dialer: host, Resolver: host,
			Interceptor: NewProxy(ProxyOptions{CA: ca, Roots: roots, Open: true, Dialer: host, Resolver: host})})
		host.name("ok.test", "198.51.100.1")
		host.listen("198.51.100.1:"+port, func(c net.Conn) {
			echo(tls.Server(c, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return upstream.Leaf(h.ServerName) }}))
		})
		w.ask("ok.test", dnsmessage.TypeA)
		c := tls.Client(w.mustDial("198.51.100.1:"+port), &tls.Config{ServerName: "ok.test", InsecureSkipVerify: true})
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(c, "a1 LOGIN x y\r\n")
		_, err := io.ReadFull(c, make([]byte, 14))
		if got := err == nil; got != want {
			t.Errorf("port %s: %v", port, err)
		}
		_ = c.Close()
	}
}
