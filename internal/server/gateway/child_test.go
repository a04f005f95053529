package gateway

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// The test's program is a gateway of its own where a test needs as many descriptors as a process
// may have, or measures what a gateway takes. The variables have the kind, plain or tls, and the
// address of the node.
const (
	childVariable = "GATEWAY_TEST_CHILD"
	nodeVariable  = "GATEWAY_TEST_NODE"
	many          = 10_000 // connections
)

// anyone accepts every token.
type anyone struct{}

func (anyone) Verify(context.Context, string) (auth.Principal, error) {
	return auth.Principal{Issuer: "x", Tenant: "acme", Subject: "s", TokenID: "t",
		Scopes: auth.AllScopes()}, nil
}

func (anyone) Still(auth.Principal) error { return nil }

type everywhere struct{ at string }

func (e everywhere) LocateChannel(context.Context, *connect.Request[v1.LocateChannelRequest]) (
	*connect.Response[v1.LocateChannelResponse], error) {
	return connect.NewResponse(&v1.LocateChannelResponse{Node: "n1", Address: e.at}), nil
}

// runChild is the gateway's process. It writes its address, then for each line of standard input a
// line with its memory and its time of CPU, and ends with standard input.
func runChild() {
	kind := os.Getenv(childVariable)
	if kind == "" {
		return
	}
	g := New(Options{Verifier: anyone{}, Locator: everywhere{os.Getenv(nodeVariable)}, Dial: dialNode,
		Control: http.NotFoundHandler(), Limits: Limits{Connections: many, PerAddress: many - 100,
			PerToken: 2 * many, Rate: 1e6, Burst: 1e6, Idle: time.Hour, Handshake: time.Minute}})
	var o ServeOptions
	if kind == "tls" {
		o.TLS = selfSigned()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Serve(ctx, l, o) }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		g.network.mu.Lock()
		n := len(g.network.all)
		g.network.mu.Unlock()
		fmt.Println(memory(), u.Utime.Nano()+u.Stime.Nano(), n)
	}
	cancel()
	if err := <-done; err != nil {
		panic(err)
	}
	_ = g.Close()
	os.Exit(0)
}

func selfSigned() *tls.Config {
	public, private, _ := ed25519.GenerateKey(rand.Reader)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	if err != nil {
		panic(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der},
		PrivateKey: private}}, MinVersion: tls.VersionTLS12}
}

// memory returns the bytes of heap and stacks that are in use.
func memory() int64 {
	var m runtime.MemStats
	for range 3 { // a pool keeps its contents for two cycles
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A child is a gateway in another process.
type child struct {
	t   testing.TB
	at  string
	tls bool
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t testing.TB, kind, node string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+kind, nodeVariable+"="+node)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		check(t, cmd.Wait())
	})
	c := &child{t: t, tls: kind == "tls", in: in, out: bufio.NewReader(out)}
	c.at, err = c.out.ReadString('\n')
	check(t, err)
	c.at = strings.TrimSpace(c.at)
	return c
}

// stats returns the gateway's memory in bytes, its time of CPU and its connections.
func (c *child) stats() (bytes int64, cpu time.Duration, connections int) {
	c.t.Helper()
	_, err := io.WriteString(c.in, "\n")
	check(c.t, err)
	line, err := c.out.ReadString('\n')
	check(c.t, err)
	_, err = fmt.Sscan(line, &bytes, &cpu, &connections)
	check(c.t, err)
	return bytes, cpu, connections
}

// connect connects from one of the addresses of loopback.
func (c *child) connect(host byte) net.Conn {
	c.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}
	conn, err := d.DialContext(c.t.Context(), "tcp", c.at)
	check(c.t, err)
	if c.tls {
		s := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // it has just been made
		check(c.t, s.HandshakeContext(c.t.Context()))
		return s
	}
	return conn
}

const askHealth = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

// ask sends a request and returns the status.
func ask(t testing.TB, c net.Conn) int {
	t.Helper()
	_, err := io.WriteString(c, askHealth)
	check(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	check(t, err)
	_, err = io.Copy(io.Discard, answer.Body)
	check(t, err)
	return answer.StatusCode
}

// TestManyConnections opens as many connections as the gateway permits. Further ones get an error
// that says so, and those that are there are served. When they end, all is as before.
func TestManyConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("opens 10,000 connections")
	}
	c := startChild(t, "plain", "")
	before, _, _ := c.stats()
	all := make([]net.Conn, 0, many)
	defer func() {
		for _, one := range all {
			_ = one.Close()
		}
	}()
	for n := range many {
		all = append(all, c.connect(byte(1+n%4)))
	}
	if got := ask(t, c.connect(9)); got != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d", got)
	}
	for _, n := range []int{0, many / 2, many - 1} {
		if got := ask(t, all[n]); got != http.StatusOK {
			t.Errorf("connection %d: %d", n, got)
		}
	}
	bytes, _, n := c.stats()
	t.Logf("%d connections, %d bytes each", n, (bytes-before)/int64(n))
	if n != many || (bytes-before)/int64(n) > 64<<10 {
		t.Errorf("%d connections take %d bytes", n, bytes-before)
	}
	for _, one := range all {
		_ = one.Close()
	}
	for n != 0 {
		_, _, n = c.stats()
	}
	if got := ask(t, c.connect(9)); got != http.StatusOK {
		t.Errorf("afterwards: %d", got)
	}
}
