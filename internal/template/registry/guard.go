package registry

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// A guard makes the requests of a Server. Indexes name files on other hosts, and servers redirect:
// a stranger chooses these addresses, this machine requests them, and a guest gets the responses.
// So hosts other than the registries' own must be public, unless a registry is itself in a private
// network or on this machine.
type guard struct {
	registries []*url.URL
	own        *http.Transport // to the registries, and to all hosts through the user's proxy
	other      *http.Transport
	inside     atomic.Bool // a registry has an address that is not public
}

func newGuard(idle time.Duration, registries ...*url.URL) *guard {
	g := &guard{registries: registries}
	g.own, g.other = transport(idle, g.met), transport(idle, g.allowed)
	return g
}

// transport returns a transport that calls check with the address of each connection.
func transport(idle time.Duration, check func(netip.Addr) error) *http.Transport {
	dialer := &net.Dialer{Timeout: 20 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return check(at.Addr().Unmap())
		}}
	return &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: 20 * time.Second, ResponseHeaderTimeout: idle,
		MaxIdleConnsPerHost: parallel, MaxResponseHeaderBytes: 256 << 10}
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	for _, u := range g.registries {
		if u.Host == req.URL.Host {
			return g.own.RoundTrip(req)
		}
	}
	// With a proxy, the connection's address is not the requested host's.
	if proxy, err := http.ProxyFromEnvironment(req); err != nil || proxy != nil {
		return g.own.RoundTrip(req)
	}
	return g.other.RoundTrip(req)
}

// CloseIdleConnections is called by http.Client.
func (g *guard) CloseIdleConnections() {
	g.own.CloseIdleConnections()
	g.other.CloseIdleConnections()
}

// met records the registries' addresses.
func (g *guard) met(ip netip.Addr) error {
	if !isPublic(ip) {
		g.inside.Store(true)
	}
	return nil
}

// allowed rejects addresses to which a registry must not redirect.
func (g *guard) allowed(ip netip.Addr) error {
	if isPublic(ip) || g.inside.Load() && !ip.IsLinkLocalUnicast() {
		return nil
	}
	return turnstone.Errorf("registry.fetch", turnstone.KindInvalid, ip.String(),
		"a registry leads to an address that is not public").WithHint("use another registry")
}

func isPublic(ip netip.Addr) bool { return network.Policy{}.Decide("", ip, 443).Allowed }
