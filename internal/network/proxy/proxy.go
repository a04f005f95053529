// Package proxy serves connections of a sandbox whose requests are checked: it forwards HTTP
// request by request, intercepts TLS with the sandbox's own authority, sets secret headers, and
// records or replays. Input from the guest and from servers is untrusted.
package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/secret"
)

// Options are the parameters of New. The zero value of each field is valid.
type Options struct {
	Dialer   network.Dialer   // nil: the host's own
	Resolver network.Resolver // nil: the host's own
	Roots    *x509.CertPool   // trusted authorities of hosts; nil: the host's
	CA       *CA              // nil: TLS is not intercepted
	Open     bool             // all of TLS is intercepted, not only that of hosts with secrets
	Headers  []turnstone.SecretHeader
	Recorder *recording.Recorder // nil: no recording
	Player   *recording.Player   // nil: no replay; otherwise no connection is dialed
	Secrets  *secret.Set
	Budget   *Budget          // of intercepted connections; nil: a share of a new budget
	Observer network.Observer // receives the refusals of the proxy; may be nil
}

// A Proxy is the Interceptor that intercepts TLS, sets secret headers, records and replays. It
// speaks HTTP/1.1 with both sides, and copies the bytes of other protocols. It is safe for
// concurrent use.
type Proxy struct{ opts Options }

// New returns a Proxy.
func New(opts Options) *Proxy {
	if opts.Dialer == nil {
		opts.Dialer = &net.Dialer{}
	}
	if opts.Resolver == nil {
		opts.Resolver = &net.Resolver{PreferGo: true}
	}
	if opts.Budget == nil {
		opts.Budget = NewBudget(DefaultBudget).Share()
	}
	return &Proxy{opts}
}

const (
	dialTime      = 30 * time.Second
	handshakeTime = 30 * time.Second
	headerTime    = time.Minute     // for a guest to finish a request's headers
	idleTime      = 2 * time.Minute // between two requests
	partialTime   = 2 * time.Second // after first bytes that may become HTTP
	maxRequest    = 64 << 10        // bytes of a request's headers
	maxAnswer     = 128 << 10       // bytes of an answer's headers
)

// Intercept implements Interceptor.
func (p *Proxy) Intercept(ctx context.Context, guest net.Conn, to network.Target) bool {
	c := &connection{p: p, to: to.Address, name: network.BareName(to.Name), request: to.Request,
		scheme: "http"}
	if p.opts.Recorder == nil && p.opts.Player == nil && !p.opts.Open && len(c.headers("")) == 0 {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = guest.Close() })()
	if p.opts.Player != nil {
		c.replay(ctx, newEager(guest))
	} else {
		c.forward(ctx, newEager(guest))
	}
	_ = guest.Close()
	return true
}

// Carry forwards a connection between guest and host until its end. It forwards HTTP request by
// request, as to.Request requires.
func (p *Proxy) Carry(ctx context.Context, guest, host net.Conn, to network.Target) {
	c := &connection{p: p, to: to.Address, name: network.BareName(to.Name), request: to.Request,
		scheme: "http"}
	c.carry(ctx, newEager(guest), newEager(host))
}

// A connection is a connection that a Proxy serves.
type connection struct {
	p      *Proxy
	to     netip.AddrPort
	name   string // the requested host; empty: unknown
	scheme string // "https" once TLS was intercepted
	placed bool   // it has a place in the budget
	// request returns why a request for a host is refused, or ""; nil: the policy names no hosts.
	request func(host string) string
}

// strict reports whether HTTP is forwarded request by request, and never as bytes.
func (c *connection) strict() bool { return c.request != nil || len(c.headers("")) > 0 }

// host returns the name of the connection's other end.
func (c *connection) host() string {
	if c.name != "" {
		return c.name
	}
	return c.to.Addr().String()
}

// refused reports an action of the guest that was refused.
func (c *connection) refused(reason string) { c.refusedFor(c.name, reason) }

// refusedFor is refused for a host other than the connection's.
func (c *connection) refusedFor(host, reason string) {
	if o := c.p.opts.Observer; o != nil {
		o.Refused(turnstone.Refusal{At: time.Now(), Protocol: "tcp", Host: host, Address: c.to,
			Reason: network.Shorten(c.p.opts.Secrets.Mask(reason))})
	}
}

// headers returns the secret headers for the connection's requests.
func (c *connection) headers(scheme string) secretHeaders {
	return secretHeaders(c.p.opts.Headers).of(scheme, c.host(), c.to)
}

func (c *connection) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return c.p.opts.Dialer.DialContext(ctx, "tcp", network.HostAddress(c.to).String())
}

// Below returns the dialer and the resolver for a Stack whose Interceptor is p: they handle traffic
// that bypasses p, such as datagrams and lookups.
func (p *Proxy) Below() (network.Dialer, network.Resolver) {
	switch {
	case p.opts.Player != nil:
		return &tellingDialer{p}, &tellingResolver{p}
	case p.opts.Recorder != nil:
		return p.opts.Recorder.Dialer(p.opts.Dialer), p.opts.Recorder.Resolver(p.opts.Resolver)
	}
	return p.opts.Dialer, p.opts.Resolver
}

// opens reports whether TLS on this connection is intercepted.
func (c *connection) opens() bool {
	return c.p.opts.CA != nil && (c.p.opts.Open || len(c.headers("https")) > 0)
}

// forward connects guest with its requested host.
func (c *connection) forward(ctx context.Context, guest *eagerConn) {
	upstream, err := c.dial(ctx)
	if err != nil {
		c.p.opts.Recorder.Stream(recording.Stream{Host: c.name, Address: c.to,
			Protocol: recording.ProtocolTCP, Failed: err.Error()})
		network.Reset(guest.Conn)
		return
	}
	defer upstream.Close()
	defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
	c.carry(ctx, guest, newEager(upstream))
}

// forwardHTTP forwards requests. It answers invalid requests with an error.
func (c *connection) forwardHTTP(ctx context.Context, guest, upstream *eagerConn) {
	f := c.forwarder(ctx, upstream)
	c.serveHTTP(guest, f)
	f.transport.CloseIdleConnections()
}

// openTLS terminates the guest's TLS, with a certificate of the sandbox's own authority, after it
// has verified the host's certificate.
func (c *connection) openTLS(ctx context.Context, guest, upstream *eagerConn) {
	var up *tls.Conn
	inner := tls.Server(guest, &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, err := c.serverName(hello)
			if err != nil {
				return nil, err
			}
			up = tls.Client(upstream, &tls.Config{ServerName: name, RootCAs: c.p.opts.Roots,
				NextProtos: withoutHTTP2(hello.SupportedProtos), MinVersion: tls.VersionTLS12})
			if err := up.HandshakeContext(hello.Context()); err != nil {
				c.refused("its TLS: " + err.Error())
				return nil, err
			}
			return c.serverConfig(name, up.ConnectionState().NegotiatedProtocol)
		}})
	if !c.accept(ctx, inner) {
		return
	}
	defer func() { _, _ = inner.Close(), up.Close() }()
	c.scheme = "https"
	c.carry(ctx, newEager(inner), newEager(up))
}

// serverName returns the host in a guest's ClientHello, which must be the connection's allowed
// host.
func (c *connection) serverName(hello *tls.ClientHelloInfo) (string, error) {
	name := network.BareName(hello.ServerName)
	if name == "" {
		return c.host(), nil
	}
	if c.name == "" {
		c.name = name
	}
	if name != c.name {
		c.refused(fmt.Sprintf("TLS for %.100q on a connection to %s", name, c.name))
		return "", errors.New("another host's name")
	}
	if c.request != nil {
		if reason := c.request(name); reason != "" {
			c.refused(reason)
			return "", errors.New("a host that is not allowed")
		}
	}
	return name, nil
}

// accept performs the handshake with the guest.
func (c *connection) accept(ctx context.Context, inner *tls.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	return inner.HandshakeContext(ctx) == nil
}

func (c *connection) serverConfig(name, protocol string) (*tls.Config, error) {
	leaf, err := c.p.opts.CA.Leaf(name)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS12}
	if protocol != "" {
		cfg.NextProtos = []string{protocol}
	}
	return cfg, nil
}

// withoutHTTP2 returns those of the guest's offered protocols that the proxy supports.
func withoutHTTP2(offered []string) []string {
	var kept []string
	for _, p := range offered {
		if p != "h2" && p != "h2c" && !strings.HasPrefix(p, "h3") {
			kept = append(kept, p)
		}
	}
	return kept
}

// url returns the URL of a request, in the form of recordings.
func (c *connection) url(req *http.Request) string {
	host := req.Host
	if host == "" {
		host = c.to.String()
	}
	return c.scheme + "://" + strings.ToLower(host) + req.URL.RequestURI()
}

// A digester digests a body, masked as recordings are.
type digester struct {
	hash hash.Hash
	w    io.WriteCloser
}

func newDigester(secrets *secret.Set) *digester {
	d := &digester{hash: sha256.New()}
	d.w = secrets.Writer(d.hash)
	return d
}

func (d *digester) digest() turnstone.Digest {
	_ = d.w.Close()
	return turnstone.Digest("sha256:" + hex.EncodeToString(d.hash.Sum(nil)))
}

// passOn makes a proxy forward requests unchanged.
func passOn(r *httputil.ProxyRequest, scheme, host string) {
	if hidesRequests(strings.Join(r.Out.Header.Values("Upgrade"), ",")) {
		r.Out.Header.Del("Upgrade")
		r.Out.Header.Del("Connection")
		r.Out.Header.Del("Http2-Settings")
	}
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = scheme, host, r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // also a query that Go cannot parse
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host",
		"X-Forwarded-Proto"} {
		if v, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = v
		}
	}
}

// hidesRequests reports whether an Upgrade header requests a form that is not checked: HTTP/2 in
// the clear (RFC 7540, 3.2), or TLS (RFC 2817). Servers may accept any separator between the names
// of protocols.
func hidesRequests(upgrade string) bool {
	names := strings.FieldsFunc(strings.ToLower(upgrade),
		func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' &&
				r != '_'
		})
	return slices.ContainsFunc(names,
		func(name string) bool {
			return name == "h2c" || name == "h2" || name == "http" ||
				name == "tls"
		})
}
