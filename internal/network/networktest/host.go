package networktest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// SocketPair returns both ends of a pair of stream sockets.
func SocketPair(tb testing.TB) (net.Conn, net.Conn) {
	tb.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			tb.Fatal(err)
		}
		_ = f.Close()
	}
	return conns[0], conns[1]
}

// A Host is a Dialer and a Resolver for tests: handlers by address, and names.
type Host struct {
	tb testing.TB

	Mu      sync.Mutex
	tcp     map[string]func(net.Conn)
	Fails   map[string]error
	names   map[string][]netip.Addr
	dialed  []string
	Lookups []string
	Answer  func(ctx context.Context, name string) ([]netip.Addr, error) // for other names
}

// NewHost returns a Host without handlers and names.
func NewHost(tb testing.TB) *Host {
	return &Host{tb: tb, tcp: map[string]func(net.Conn){}, Fails: map[string]error{},
		names: map[string][]netip.Addr{}}
}

// Listen makes handler serve connections to address.
func (h *Host) Listen(address string, handler func(net.Conn)) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.tcp[address] = handler
}

// Name makes a name resolve to addresses.
func (h *Host) Name(name string, addrs ...string) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.names[name] = nil
	for _, a := range addrs {
		h.names[name] = append(h.names[name], netip.MustParseAddr(a))
	}
}

// Dials returns the connections that were dialed, such as "tcp 192.0.2.1:80".
func (h *Host) Dials() []string {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return append([]string(nil), h.dialed...)
}

// DialContext returns an end of a socket pair, whose halves can be closed separately.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	h.Mu.Lock()
	h.dialed = append(h.dialed, network+" "+address)
	handler, err := h.tcp[address], h.Fails[address]
	h.Mu.Unlock()
	if err == context.DeadlineExceeded {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
	if err != nil {
		return nil, err
	}
	if handler == nil {
		return nil, &net.OpError{Op: "dial", Net: network,
			Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	kind := syscall.SOCK_STREAM
	if network == "udp" {
		kind = syscall.SOCK_SEQPACKET
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		conns[i] = c
	}
	go handler(conns[1])
	return conns[0], nil
}

func (h *Host) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	h.Mu.Lock()
	h.Lookups = append(h.Lookups, host)
	addrs, ok := h.names[host[:len(host)-1]]
	answer := h.Answer
	h.Mu.Unlock()
	if !ok && answer != nil {
		return answer(ctx, host)
	}
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return addrs, nil
}

// Echo sends its input back, until the end.
func Echo(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
	_ = network.CloseWrite(c)
}

// Rules parses rules.
func Rules(tb testing.TB, texts ...string) []network.Rule {
	tb.Helper()
	var out []network.Rule
	for _, text := range texts {
		r, err := network.ParseRule(text)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// ClientHello returns the first bytes of a TLS client that wants name.
func ClientHello(tb testing.TB, name string) []byte {
	tb.Helper()
	ours, theirs := net.Pipe()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}()
	defer ours.Close()
	defer theirs.Close()
	buf := make([]byte, 16<<10)
	n, err := ours.Read(buf)
	if err != nil {
		tb.Fatal(err)
	}
	return buf[:n]
}

// HTTPRequest returns a request to a host.
func HTTPRequest(host string) []byte {
	return []byte("GET / HTTP/1.1\r\nHost: " + host +
		"\r\n\r\n")
}

// NoneOwn reports that no address belongs to the host.
func NoneOwn(netip.Addr) bool { return false }

// Header parses a secret header.
func Header(t testing.TB, text string) turnstone.SecretHeader {
	h, err := network.ParseSecretHeader(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
