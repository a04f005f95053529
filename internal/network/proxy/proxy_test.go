package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/recording"
)

// A site is a name that the tests' dialer connects to a server of the test.
type site struct {
	name string
	to   netip.AddrPort // the guest's destination
	real string         // the server's address
}

// A proxied is a Proxy with a way to connect through it like a guest.
type proxied struct {
	t     *testing.T
	proxy *Proxy
	watch *network.Watch
	sites []site
	// request is the policy's check of each request, if it names hosts.
	request func(host string) string

	mu    sync.Mutex
	dials int
}

func (p *proxied) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	p.mu.Lock()
	p.dials++
	p.mu.Unlock()
	for _, s := range p.sites {
		if s.to.String() == address && s.real != "" {
			return (&net.Dialer{}).DialContext(ctx, network, s.real)
		}
	}
	return nil, fmt.Errorf("connection refused: %s", address)
}

func (p *proxied) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	for _, s := range p.sites {
		if s.name == host {
			return []netip.Addr{s.to.Addr()}, nil
		}
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func newProxied(t *testing.T, opts Options, sites ...site) *proxied {
	p := &proxied{t: t, watch: network.NewWatch(), sites: sites}
	opts.Dialer, opts.Resolver, opts.Observer = p, p, p.watch
	p.proxy = New(opts)
	return p
}

// connect returns a guest's connection to a site.
func (p *proxied) connect(s site) net.Conn {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		_ = l.Close()
		if err != nil {
			return
		}
		if !p.proxy.Intercept(p.t.Context(), c, network.Target{Address: s.to, Name: s.name,
			Request: p.request}) {
			c.Close()
			p.t.Errorf("a connection to %s was not taken", s.name)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil { // it was reset at once
		c, _ = net.Pipe()
		c.Close()
	}
	p.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// client returns an HTTP client of the sites through the proxy. ca is the authority that it trusts.
func (p *proxied) client(ca *CA) *http.Client {
	roots := x509.NewCertPool()
	if ca != nil {
		roots.AppendCertsFromPEM(ca.PEM())
	}
	dial := func(_ context.Context, _, address string) (net.Conn, error) {
		for _, s := range p.sites {
			if fmt.Sprintf("%s:%d", s.name, s.to.Port()) == address {
				return p.connect(s), nil
			}
		}
		return nil, fmt.Errorf("no site %s", address)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial,
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true}}
}

func (p *proxied) get(c *http.Client, url string) (int, string) {
	p.t.Helper()
	res, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, string(b) + " then " + err.Error()
	}
	return res.StatusCode, string(b)
}

func (p *proxied) refusals() string {
	var all []string
	refused, _ := p.watch.Take()
	for _, r := range refused {
		all = append(all, fmt.Sprintf("%s %s %s", r.Protocol, r.Host, r.Reason))
	}
	return strings.Join(all, "\n")
}

// testServer answers with the request, and counts.
func testServer(t *testing.T, encrypted bool) (*httptest.Server, *x509.CertPool) {
	var n int
	var mu sync.Mutex
	h := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		n++
		k := n
		mu.Unlock()
		body, _ := io.ReadAll(req.Body)
		w.Header().Set("X-Echo", req.Header.Get("Authorization"))
		switch req.URL.Path {
		case "/stream":
			for i := range 3 {
				fmt.Fprintf(w, "part %d\n", i)
				w.(http.Flusher).Flush()
				time.Sleep(20 * time.Millisecond)
			}
			return
		case "/moved":
			http.Redirect(w, req, "/x", http.StatusFound)
			return
		case "/broken":
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(w, "%d %s %s?%s host=%s auth=%q other=%q body=%q", k, req.Method, req.URL.Path,
			req.URL.RawQuery, req.Host,
			req.Header.Get("Authorization"), req.Header.Get("X-Other"), body)
	})
	if !encrypted {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s, nil
	}
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate,
		error) {
		return ca.Leaf(hello.ServerName)
	}}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	return s, roots
}

func at(name, to string, s *httptest.Server) site {
	v := site{name: name, to: netip.MustParseAddrPort(to)}
	if s != nil {
		v.real = s.Listener.Addr().String()
	}
	return v
}

func testCA(t *testing.T) *CA {
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestProxyLeavesAlone(t *testing.T) {
	p := newProxied(t, Options{Headers: []turnstone.SecretHeader{networktest.Header(t,
		"api.example.com=Authorization: Bearer sesame-open")}})
	guest, _ := net.Pipe()
	if p.proxy.Intercept(t.Context(), guest,
		network.Target{Address: netip.MustParseAddrPort("192.0.2.1:443"),
			Name: "other.example.com"}) {
		t.Error("a connection to a host without secrets was taken")
	}
}

func TestSecretHeader(t *testing.T) {
	s, roots := testServer(t, true)
	plain, _ := testServer(t, false)
	ca := testCA(t)
	const value = "Bearer sesame-open-0123456789"
	api, web := at("api.example.com", "192.0.2.1:443", s), at("web.example.com", "192.0.2.2:80",
		plain)
	open := at("plain.example.com", "192.0.2.3:80", plain)
	p := newProxied(t, Options{CA: ca, Roots: roots,
		Headers: []turnstone.SecretHeader{networktest.Header(t, "api.example.com=authorization: "+
			value),
			networktest.Header(t, "http://plain.example.com=Authorization: "+value),
			networktest.Header(t, "web.example.com=Authorization: "+value)}}, api, web, open)
	c := p.client(ca)
	for _, url := range []string{"https://api.example.com:443/a?b=c;d",
		"http://plain.example.com:80/a"} {
		req, _ := http.NewRequest(http.MethodPost, url, strings.NewReader("hello"))
		req.Header.Set("Authorization", "Bearer of the guest")
		req.Header.Set("X-Other", "kept")
		res, err := c.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		masked := strings.Repeat("*", len(value))
		if text := string(b); !strings.Contains(text, `auth="`+masked+`"`) ||
			!strings.Contains(text, `other="kept" body="hello"`) ||
			res.Header.Get("X-Echo") != masked {
			t.Errorf("%s: %s, %v", url, text, res.Header)
		}
		if strings.Contains(fmt.Sprint(res.Header)+string(b), "sesame") {
			t.Errorf("%s: the guest got the secret", url)
		}
	}
	if _, body := p.get(c, "http://web.example.com:80/"); !strings.Contains(body, `auth=""`) {
		t.Errorf("a secret for https was sent in the clear: %s", body)
	}
	if r := p.refusals(); r != "" {
		t.Errorf("refused: %s", r)
	}
}

// TestSecretHeaderStaysWithItsHost checks that neither another name on the same connection nor an
// address that is not the host's gets the secret.
func TestSecretHeaderStaysWithItsHost(t *testing.T) {
	plain, _ := testServer(t, false)
	good, bad := at("api.example.com", "192.0.2.1:80", plain),
		at("api.example.com", "198.51.100.9:80", plain)
	p := newProxied(t, Options{Headers: []turnstone.SecretHeader{networktest.Header(t,
		"http://api.example.com=X-Other: sesame-open")}}, good, bad)
	ask := func(s site, host string) string {
		c := p.connect(s)
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
		b, _ := io.ReadAll(c)
		return string(b)
	}
	if got := ask(good, "api.example.com"); !strings.Contains(got, `other="***********"`) {
		t.Errorf("its own host: %s", got)
	}
	if got := ask(good, "evil.example.com"); !strings.Contains(got, "421") {
		t.Errorf("another host's name: %s", got)
	}
	if got := ask(bad, "api.example.com"); !strings.Contains(got, `other=""`) {
		t.Errorf("an address that is not the host's: %s", got)
	}
	r := p.refusals()
	if !strings.Contains(r, `a request to "evil.example.com"`) ||
		!strings.Contains(r, "its address is none of api.example.com's") {
		t.Errorf("told: %s", r)
	}
}

// TestUpstreamIsVerified checks that a host without a valid certificate gets no request.
func TestUpstreamIsVerified(t *testing.T) {
	s, _ := testServer(t, true)
	ca := testCA(t)
	api := at("api.example.com", "192.0.2.1:443", s)
	p := newProxied(t, Options{CA: ca, Open: true, Roots: x509.NewCertPool()}, api)
	if status, body := p.get(p.client(ca), "https://api.example.com:443/"); status != 0 {
		t.Errorf("answered: %d %s", status, body)
	}
	if r := p.refusals(); !strings.Contains(r, "certificate") {
		t.Errorf("told: %s", r)
	}
}

// TestOpenedTLS checks that a guest is served by HTTP/1.1 and under the name that it has requested.
func TestOpenedTLS(t *testing.T) {
	s, roots := testServer(t, true)
	ca := testCA(t)
	api := at("api.example.com", "192.0.2.1:443", s)
	p := newProxied(t, Options{CA: ca, Open: true, Roots: roots}, api)
	c := p.client(ca)
	for range 3 { // also over the same connection
		if status, body := p.get(c, "https://api.example.com:443/x"); status != 200 ||
			!strings.Contains(body, "host=api.example.com:443") {
			t.Errorf("%d %s", status, body)
		}
	}
	_, body := p.get(c, "https://api.example.com:443/stream")
	if body != "part 0\npart 1\npart 2\n" {
		t.Errorf("streamed: %q", body)
	}
	if _, body := p.get(c, "https://api.example.com:443/broken"); !strings.HasPrefix(body,
		"half then ") {
		t.Errorf("broken off: %q", body)
	}
	guest := tls.Client(p.connect(api), &tls.Config{ServerName: "other.example.com",
		InsecureSkipVerify: true})
	if err := guest.Handshake(); err == nil {
		t.Error("a connection that was allowed for one name was opened for another")
	}
	if r := p.refusals(); !strings.Contains(r,
		`TLS for "other.example.com" on a connection to api.example.com`) {
		t.Errorf("told: %s", r)
	}
}

// TestUpgrade checks that the bytes after HTTP pass.
func TestUpgrade(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"+
			"Upgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "said ", line)
		rw.Flush()
	}))
	t.Cleanup(s.Close)
	rec := recording.NewRecorder(recording.Options{Out: io.Discard})
	web := at("ws.example.com", "192.0.2.2:80", s)
	p := newProxied(t, Options{Recorder: rec}, web)
	c := p.connect(web)
	fmt.Fprint(c, "GET /ws HTTP/1.1\r\nHost: ws.example.com\r\nConnection: Upgrade\r\n"+
		"Upgrade: echo\r\n\r\n")
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v %v", res, err)
	}
	fmt.Fprint(c, "hello\n")
	if line, err := in.ReadString('\n'); line != "said hello\n" {
		t.Errorf("%q %v", line, err)
	}
	c.Close()
	if r := rec.Finish(); len(r.Unrecorded) != 1 || !strings.Contains(r.Unrecorded[0], "echo") {
		t.Errorf("not recorded: %v", r.Unrecorded)
	}
}
