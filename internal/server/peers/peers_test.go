package peers_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/local"
	"turnstone.dev/turnstone/internal/server/peers"
	"turnstone.dev/turnstone/internal/server/peers/peerstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, c config.Peers) *peers.Peers {
	t.Helper()
	p, err := peers.Open(c, slog.New(slog.DiscardHandler))
	check(t, err)
	return p
}

// handler answers who may ask it, and the protocol.
func handler() http.Handler {
	mux := http.NewServeMux()
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	})
	mux.Handle("/gateways", peers.Only(answer, config.Gateway))
	mux.Handle("/both", peers.Only(answer, config.Gateway, config.Node))
	mux.HandleFunc("/raw", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\nraw")
		_ = c.Close()
	})
	return mux
}

// serve starts a listener of p and returns its address.
func serve(t *testing.T, c config.Peers) string {
	t.Helper()
	p := open(t, c)
	l, err := p.Listen(t.Context())
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, handler()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if strings.HasPrefix(c.Listen, "unix:") {
		return c.Listen
	}
	return l.Addr().String()
}

// get calls a path of the process at an address, and returns its answer or its status.
func get(t *testing.T, p *peers.Peers, address, role, path string) (string, error) {
	t.Helper()
	tr := p.Transport(address, role)
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://peer"+path, nil)
	check(t, err)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.StatusCode), err
	}
	return string(b), err
}

// TestRoles: a role reaches what it may, over TCP with certificates, and nothing else.
func TestRoles(t *testing.T) {
	ca := peerstest.New(t)
	controller := ca.Issue("controller")
	controller.Listen = "127.0.0.1:0"
	address := serve(t, controller)
	for _, c := range []struct {
		names      []string
		path, want string
	}{
		{[]string{"gateway"}, "/gateways", "HTTP/2.0"},
		{[]string{"gateway"}, "/both", "HTTP/2.0"},
		{[]string{"node"}, "/gateways", "403"},
		{[]string{"node"}, "/both", "HTTP/2.0"},
		{[]string{"node", "gateway"}, "/gateways", "HTTP/2.0"},
		{[]string{"controller"}, "/both", "403"},
	} {
		got, err := get(t, open(t, ca.Issue(c.names...)), address, "controller", c.path)
		if err != nil || got != c.want {
			t.Errorf("%q at %s: %q, %v", c.names, c.path, got, err)
		}
	}
	for what, c := range map[string]config.Peers{
		"a certificate without a role": ca.Issue("somebody"),
		"a wildcard":                   ca.Issue("*"),
		"another authority's": func() config.Peers {
			other := peerstest.New(t).Issue("gateway")
			other.Authority = ca.File
			return other
		}(),
	} {
		if got, err := get(t, open(t, c), address, "controller", "/both"); err == nil {
			t.Errorf("%s is answered %q", what, got)
		}
	}
}

// TestWrongServer: a process is asked only if its certificate names the role and the authority is
// trusted.
func TestWrongServer(t *testing.T) {
	ca := peerstest.New(t)
	node := ca.Issue("node")
	node.Listen = "127.0.0.1:0"
	address := serve(t, node)
	if got, err := get(t, open(t, ca.Issue("gateway")), address, "controller", "/both"); err == nil {
		t.Errorf("a node answers %q as a controller", got)
	}
	mine := ca.Issue("gateway")
	mine.Authority = peerstest.New(t).File
	_, err := get(t, open(t, mine), address, "node", "/both")
	if turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a node of another authority: %v", err)
	}
}

// TestWithoutCertificate: a client that shows none, or speaks no TLS, reaches no handler.
func TestWithoutCertificate(t *testing.T) {
	ca := peerstest.New(t)
	c := ca.Issue("controller")
	c.Listen = "127.0.0.1:0"
	address := serve(t, c)
	pem, err := os.ReadFile(ca.File)
	check(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool, ServerName: "controller"})
	if err == nil { // in TLS 1.3 the client learns it with the first answer
		_, _ = io.WriteString(conn, "GET /both HTTP/1.1\r\nHost: x\r\n\r\n")
		if b, err := io.ReadAll(conn); err == nil {
			t.Errorf("without a certificate the answer is %q", b)
		}
		_ = conn.Close()
	}
	plain, err := net.Dial("tcp", address)
	check(t, err)
	defer func() { _ = plain.Close() }()
	_, _ = io.WriteString(plain, "GET /both HTTP/1.1\r\nHost: x\r\n\r\n")
	if b, _ := io.ReadAll(plain); strings.Contains(string(b), "200 OK") {
		t.Errorf("without TLS the answer is %q", b)
	}
}

// TestUpgrade: a channel's connection speaks HTTP/1.1, over TLS and in memory.
func TestUpgrade(t *testing.T) {
	ca := peerstest.New(t)
	c := ca.Issue("node")
	c.Listen = "127.0.0.1:0"
	address := serve(t, c)
	conn, err := open(t, ca.Issue("gateway")).Dial(t.Context(), address, "node")
	check(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "GET /raw HTTP/1.1\r\nHost: node\r\n\r\n")
	check(t, err)
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, " 101 ") {
		t.Errorf("%q, %v", line, err)
	}
}

// TestUnix: processes of one user need no certificate.
func TestUnix(t *testing.T) {
	c := config.Peers{Listen: "unix:" + filepath.Join(t.TempDir(), "peers.sock")}
	address := serve(t, c)
	if got, err := get(t, open(t, config.Peers{}), address, "controller", "/gateways"); err != nil ||
		got != "HTTP/2.0" {
		t.Errorf("%q, %v", got, err)
	}
	info, err := os.Stat(strings.TrimPrefix(address, "unix:"))
	check(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %04o", info.Mode().Perm())
	}
	if _, err := open(t, config.Peers{}).Dial(t.Context(), "127.0.0.1:1", "node"); err == nil ||
		!strings.Contains(err.Error(), "no certificate") {
		t.Errorf("TCP without a certificate: %v", err)
	}
}

// TestMemory: roles of one process use the same handlers.
func TestMemory(t *testing.T) {
	m := local.NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- open(t, config.Peers{}).Serve(ctx, m, handler()) }()
	tr := peers.MemoryTransport(m)
	resp, err := (&http.Client{Transport: tr}).Get("http://peer/gateways")
	check(t, err)
	b, err := io.ReadAll(resp.Body)
	if err != nil || string(b) != "HTTP/2.0" {
		t.Errorf("%q, %v", b, err)
	}
	_ = resp.Body.Close()
	tr.CloseIdleConnections()
	cancel()
	check(t, <-done)
	if _, err := m.Dial(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("after its end: %v", err)
	}
}

// TestRenewal: a new certificate and a new authority are used without a restart; a damaged file
// changes nothing.
func TestRenewal(t *testing.T) {
	ca := peerstest.New(t)
	mine := ca.Issue("somebody")
	mine.Listen = "127.0.0.1:0"
	address := serve(t, mine)
	asking := open(t, ca.Issue("gateway"))
	if _, err := get(t, asking, address, "controller", "/both"); err == nil {
		t.Fatal("the certificate names the role too early")
	}
	ca.Renew(mine, "controller")
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := get(t, asking, address, "controller", "/both"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	check(t, os.WriteFile(mine.Key, []byte("damaged"), 0o600))
	p := open(t, ca.Issue("gateway"))
	if got, err := get(t, p, address, "controller", "/both"); err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := peers.Open(mine, slog.New(slog.DiscardHandler)); turnstone.KindOf(err) !=
		turnstone.KindInvalid || strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged key: %v", err)
	}
}
