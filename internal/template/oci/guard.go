package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"turnstone.dev/turnstone/internal/network"
)

const maxRedirects = 5

var errRedirects = errors.New("the registry redirects in circles")

// A refusal is a request that was not sent.
type refusal struct {
	why  string
	hint string // empty: the user cannot do anything
}

func (r *refusal) Error() string { return r.why }

func refuse(format string, args ...any) error { return &refusal{why: fmt.Sprintf(format, args...)} }

// A guard makes the requests of one session. Registries redirect to storage, and name servers that
// issue tokens: a stranger chooses these addresses, and this machine requests them. So hosts other
// than the registry's own are used only with TLS, and must not be this machine, its link, or,
// unless the registry itself is there, a private network. Without TLS only a registry on this
// machine is used. A registry that a stranger names is treated like other hosts.
type guard struct {
	ref     Reference
	strange bool            // a stranger named the registry
	own     *http.Transport // to the registry
	other   *http.Transport // to hosts that the registry names
	proxy   *http.Transport // to both, through the user's proxy
	private atomic.Bool     // the registry has a private address
	plain   atomic.Value    // the registry's last error without TLS
}

func newGuard(ref Reference, patience time.Duration, strange bool) *guard {
	g := &guard{ref: ref, strange: strange}
	g.own, g.other = g.transport(patience, g.met), g.transport(patience, g.allowed)
	g.proxy = g.transport(patience, func(netip.Addr) error { return nil })
	return g
}

// transport returns a transport that calls check with the address of each connection.
func (g *guard) transport(patience time.Duration, check func(netip.Addr) error) *http.Transport {
	dialer := &net.Dialer{Timeout: min(patience, 20*time.Second),
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return refuse("%s is not an address", address)
			}
			return check(at.Addr().Unmap())
		}}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: min(patience, 20*time.Second), ResponseHeaderTimeout: patience,
		IdleConnTimeout:     30 * time.Second,
		MaxIdleConnsPerHost: parallel, MaxResponseHeaderBytes: 1 << 20,
		DisableCompression: true, // a digest covers a blob's exact bytes
	}
}

// met records the registry's address.
func (g *guard) met(ip netip.Addr) error {
	if why := notPublic(ip); why != "" && g.strange {
		return g.refuses(ip.String() + ", " + why)
	}
	if ip.IsPrivate() {
		g.private.Store(true)
	}
	if g.ref.loopback() && !ip.IsLoopback() {
		return refuse("%s is not this machine, although its name says so", g.ref.Registry())
	}
	return nil
}

// allowed rejects addresses to which a registry must not redirect.
func (g *guard) allowed(ip netip.Addr) error {
	if ip.IsPrivate() && g.private.Load() {
		return nil
	}
	why := closed(ip)
	if g.strange {
		why = notPublic(ip)
	}
	if why != "" {
		return refuse("the registry leads to %s, %s", ip, why)
	}
	return nil
}

// maxBody bounds the body of each answer that is not a blob's content.
const maxBody = 8 << 20

// A blobKey in a request's context says that its answer's body is a blob, which has a bound of its own.
type blobKey struct{}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := g.send(req)
	if err == nil && req.Context().Value(blobKey{}) == nil {
		resp.Body = &boundedBody{resp.Body, maxBody}
	}
	return resp, err
}

// A boundedBody fails after left bytes. Some bodies are read to their end by nobody who bounds them:
// clients read what is left of an answer, to use its connection again.
type boundedBody struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, unusable("", "the registry's answer has more than %d bytes", maxBody)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// send sends a request that is allowed.
func (g *guard) send(req *http.Request) (*http.Response, error) {
	host, own := req.URL.Hostname(), strings.EqualFold(req.URL.Host, g.ref.Registry())
	if why := closedHost(host); why != "" && g.strange {
		return nil, g.refuses(host + ", " + why)
	}
	switch {
	case req.URL.Scheme == "https":
	case req.URL.Scheme == "http" && own && g.ref.loopback():
	default:
		return nil, refuse("%s requires a connection without TLS, which is allowed only for a "+
			"registry on this machine", req.URL.Host)
	}
	if !own && loopbackHost(host) {
		return nil, refuse("the registry leads to %s, which is this machine", req.URL.Host)
	}
	if ip, err := netip.ParseAddr(host); err == nil && !own {
		if err := g.allowed(ip.Unmap()); err != nil {
			return nil, err
		}
	}
	// With a proxy, the connection's address is not the requested host's.
	if proxy, err := http.ProxyFromEnvironment(req); err != nil || proxy != nil {
		if err := g.resolves(req.Context(), host); err != nil {
			return nil, err
		}
		return g.proxy.RoundTrip(req)
	}
	if !own {
		return g.other.RoundTrip(req)
	}
	resp, err := g.own.RoundTrip(req)
	if err != nil && req.URL.Scheme == "http" {
		g.plain.Store(&url.Error{Op: "Get", URL: req.URL.String(), Err: err})
	}
	return resp, err
}

// resolves rejects a host that a stranger named and that this machine resolves to a closed address,
// if a proxy would connect to it. For names that only the proxy resolves, the proxy decides.
func (g *guard) resolves(ctx context.Context, host string) error {
	if !g.strange {
		return nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	for _, ip := range addrs {
		if why := notPublic(ip.Unmap()); why != "" {
			return g.refuses(ip.String() + ", " + why)
		}
	}
	return nil
}

// refuses rejects a registry that is not on the Internet, for callers without permission for
// others.
func (g *guard) refuses(where string) error {
	return &refusal{why: fmt.Sprintf(
		"the registry is at %s, which is not allowed for a document's image", where),
		hint: "give it with --image, or name the registry in [images] of config.toml"}
}

// closedHost returns the reason why a host's name cannot be on the Internet; "" if it may be.
func closedHost(host string) string {
	if loopbackHost(host) {
		return "which is this machine"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return notPublic(ip.Unmap())
	}
	return ""
}

// notPublic returns the reason why a sandbox with the network on could not reach ip either: in
// addition to the addresses that are closed to registries, metadata services, reserved ranges and
// this machine's own addresses, which may be public. "" if it could.
func notPublic(ip netip.Addr) string {
	if why := closed(ip); why != "" {
		return why
	}
	if v := (network.Policy{}).Decide("", ip, 443); !v.Allowed {
		return "a " + v.Reason
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "which may be this machine: " + err.Error()
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == ip {
			return "which is this machine"
		}
	}
	return ""
}

func (g *guard) close() {
	for _, t := range []*http.Transport{g.own, g.other, g.proxy} {
		t.CloseIdleConnections()
	}
}

// closed returns the reason why ip is not on the Internet; "" if it is.
func closed(ip netip.Addr) string {
	if b := ip.As16(); ip.Is6() && !ip.IsLoopback() && !ip.IsUnspecified() {
		switch { // addresses that contain an IPv4 address
		case netip.MustParsePrefix("64:ff9b::/96").Contains(ip), // NAT64, RFC 6052
			netip.MustParsePrefix("::/96").Contains(ip): // IPv4-compatible, RFC 4291
			return closed(netip.AddrFrom4([4]byte(b[12:])))
		case netip.MustParsePrefix("2002::/16").Contains(ip): // 6to4, RFC 3056
			return closed(netip.AddrFrom4([4]byte(b[2:6])))
		}
	}
	shared := netip.MustParsePrefix("100.64.0.0/10") // RFC 6598; clouds have services in this range
	zero := netip.MustParsePrefix("0.0.0.0/8")
	switch {
	case ip.IsLoopback(), ip.IsUnspecified(), zero.Contains(ip):
		return "which is this machine"
	case ip.IsLinkLocalUnicast(), ip.IsMulticast():
		return "which is on this machine's link"
	case ip.IsPrivate(), shared.Contains(ip):
		return "which is in a private network"
	}
	return ""
}

var errStalled = errors.New("the registry sends nothing, or next to nothing")

// stalled replaces an error by the cause of ctx's end, if there is one.
func stalled(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}
