package netstack

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/network/recording"
)

// send writes text with a pause at each bar.
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

// TestNoRequestIsSmuggled sends requests to another host over connections that are open to a single
// host, in every way that connections are served, first and after a good request.
func TestNoRequestIsSmuggled(t *testing.T) {
	ca, upstream := newCA(t), newCA(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(upstream.PEM())
	for path, c := range map[string]struct {
		allow     string
		to        string
		encrypted bool
		proxy     func() *proxy.Options
	}{
		"plain":         {allow: "api.example.com", to: "198.51.100.1:80"},
		"a rule's port": {allow: "api.example.com:8080", to: "198.51.100.1:8080"},
		"recorded": {allow: "api.example.com", to: "198.51.100.1:80", proxy: func() *proxy.Options {
			return &proxy.Options{Recorder: recording.NewRecorder(
				recording.Options{Out: io.Discard})}
		}},
		"recorded, a port": {allow: "api.example.com:8080", to: "198.51.100.1:8080",
			proxy: func() *proxy.Options {
				return &proxy.Options{Recorder: recording.NewRecorder(
					recording.Options{Out: io.Discard})}
			}},
		"a secret header": {allow: "0.0.0.0/0", to: "198.51.100.1:80",
			proxy: func() *proxy.Options {
				return &proxy.Options{Headers: []turnstone.SecretHeader{networktest.Header(t,
					"http://api.example.com=X-Other: sesame-open")}}
			}},
		"opened TLS": {allow: "api.example.com", to: "198.51.100.1:443", encrypted: true,
			proxy: func() *proxy.Options {
				return &proxy.Options{CA: ca, Roots: roots,
					Open: true}
			}},
		"opened TLS, a port": {allow: "api.example.com:8443", to: "198.51.100.1:8443",
			encrypted: true, proxy: func() *proxy.Options {
				return &proxy.Options{CA: ca,
					Roots: roots, Open: true}
			}},
		"opened for a secret": {allow: "0.0.0.0/0", to: "198.51.100.1:443", encrypted: true,
			proxy: func() *proxy.Options {
				return &proxy.Options{CA: ca, Roots: roots,
					Headers: []turnstone.SecretHeader{networktest.Header(t,
						"api.example.com=X-Other: sesame-open")}}
			}},
	} {
		t.Run(path, func(t *testing.T) {
			host := networktest.NewHost(t)
			opts := Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t, c.allow,
				"api.example.com")}, Dialer: host, Resolver: host}
			if c.proxy != nil {
				p := c.proxy()
				p.Dialer, p.Resolver = host, host
				opts.Interceptor = proxy.New(*p)
			}
			w := newWorld(t, opts)
			host.Name("api.example.com", "198.51.100.1")
			s := &networktest.LenientServer{}
			host.Listen(c.to, func(conn net.Conn) {
				if c.encrypted {
					conn = tls.Server(conn, &tls.Config{
						GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate,
							error) {
							return upstream.Leaf(h.ServerName)
						}})
				}
				s.Serve(conn)
			})
			w.ask("api.example.com", dnsmessage.TypeA)
			var all sync.WaitGroup
			for _, text := range networktest.Smuggling {
				for _, before := range []string{"", networktest.GoodRequest} {
					if c.allow == "0.0.0.0/0" &&
						(before == "" || !strings.Contains(text, "%[1]s")) {
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
						_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
						if c.encrypted {
							conn = tls.Client(conn, &tls.Config{ServerName: "api.example.com",
								InsecureSkipVerify: true})
						}
						whole := text
						if strings.Contains(whole, "%[1]s") {
							whole = fmt.Sprintf(whole, before)
						}
						send(conn, whole)
						_ = network.CloseWrite(conn)
						_, _ = io.Copy(io.Discard, conn)
					})
				}
			}
			all.Wait()
			good := false
			for _, h := range s.Hosts() {
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

// TestOtherProtocolsArePassedOn checks that other protocols than HTTP are not held back, also if
// requests are checked.
func TestOtherProtocolsArePassedOn(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"db.example.com:5000")}}, func(l *limits) { l.hello = time.Minute })
	w.host.Name("db.example.com", "198.51.100.1")
	w.host.Listen("198.51.100.1:5000", networktest.Echo)
	w.ask("db.example.com", dnsmessage.TypeA)
	for what, b := range map[string]string{
		"ssh": "SSH-2.0-OpenSSH_9.6\r\n", "PostgreSQL": "\x00\x00\x00\x08\x04\xd2\x16\x2f",
		"LDAP":             "0\x0c\x02\x01\x01`\x07\x02\x01\x03\x04\x00\x80\x00",
		"LDAP of 32 bytes": "0 \x02\x01\x01`\x1b\x02\x01\x03", "redis": "*1\r\n$4\r\nPING\r\n",
		"memcached": "get key\r\n", "git": "0032git-upload-pack /x\x00host=y\x00",
		"MQTT": "\x10\x0c\x00\x04MQTT", "NATS": "CONNECT {}\r\n", "IRC": "NICK me\r\n",
		"finger": "\r\n", "MongoDB": "*\x00\x00\x00\x01", "AMQP": "AMQP\x00\x00\x09\x01",
		"RTSP": "OPTIONS rtsp://x/ RTSP/1.0\r\n", "RFB": "RFB 003.008\n",
		"blanks first": " \r\n\x00x",
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

// TestOddHosts checks that every reader sees the same host, or none.
func TestOddHosts(t *testing.T) {
	for host, want := range map[string]string{
		"API.example.com": "api.example.com", "api.example.com.:80": "api.example.com",
		"192.0.2.1:8080": "192.0.2.1", "[2001:db8::1]": "2001:db8::1",
		"[2001:db8::1]:80": "2001:db8::1", "a_b:1": "a_b",
		"ok.test:.evil.test": "", "ok.test:80,evil.test": "", "ok.test,evil.test": "",
		"[ok.test]:evil.test": "", "[ok.test]": "", "[::1]x": "", "[::1": "", "[::1%x]": "",
		"ok.test:80:80": "", "ok.test:+80": "", "ok.test:123456": "", "a b": "", "a@b": "",
		"a/b": "",
	} {
		if got := network.HostOnly(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"ok.test:8090")}})
	w.host.Name("ok.test", "198.51.100.1")
	w.host.Listen("198.51.100.1:8090", hello)
	w.ask("ok.test", dnsmessage.TypeA)
	c := w.mustDial("198.51.100.1:8090")
	defer c.Close()
	networktest.Answers(t, c, []networktest.Answer{{Host: "ok.test:8090", Want: 200},
		{Host: "ok.test:.evil.test", Want: 400}, {Host: "ok.test:80,evil.test", Want: 400},
		{Host: "[ok.test]:evil.test", Want: 400}, {Host: "ok.test", Want: 200}})
}

// TestOnlyHTTPInOpenedTLS checks that on a port of the web only HTTP passes through intercepted
// TLS, whichever side begins.
func TestOnlyHTTPInOpenedTLS(t *testing.T) {
	ca, upstream := newCA(t), newCA(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(upstream.PEM())
	for port, want := range map[string]bool{"443": false, "993": true} {
		host := networktest.NewHost(t)
		w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
			"ok.test")}, Dialer: host, Resolver: host,
			Interceptor: proxy.New(proxy.Options{CA: ca, Roots: roots, Open: true, Dialer: host,
				Resolver: host})})
		host.Name("ok.test", "198.51.100.1")
		host.Listen("198.51.100.1:"+port, func(c net.Conn) {
			networktest.Echo(tls.Server(c,
				&tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate,
					error) {
					return upstream.Leaf(h.ServerName)
				}}))
		})
		w.ask("ok.test", dnsmessage.TypeA)
		c := tls.Client(w.mustDial("198.51.100.1:"+port), &tls.Config{ServerName: "ok.test",
			InsecureSkipVerify: true})
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		_, _ = io.WriteString(c, "a1 LOGIN x y\r\n")
		_, err := io.ReadFull(c, make([]byte, 14))
		if got := err == nil; got != want {
			t.Errorf("port %s: %v", port, err)
		}
		_ = c.Close()
	}
}

func newCA(t *testing.T) *proxy.CA {
	ca, err := proxy.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	return ca
}
