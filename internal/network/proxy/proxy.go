// Package proxy serves connections of a sandbox whose requests are looked at: it passes HTTP on
// request by request, opens TLS with the sandbox's own authority, sets secret headers, and records
// or replays. What a guest and a server send is an attacker's input.
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

// Options are what a Proxy is made with. All may be zero.
type Options struct {
	Dialer   network.Dialer   // nil: the host's own
	Resolver network.Resolver // nil: the host's own
	Roots    *x509.CertPool   // that vouch for hosts; nil: the host's
	CA       *CA              // nil: TLS is not opened
	Open     bool             // all of TLS is opened, not just that of hosts with secrets
	Headers  []network.SecretHeader
	Recorder *recording.Recorder // nil: nothing is recorded
	Player   *recording.Player   // nil: nothing is replayed; else nothing is dialed
	Secrets  *secret.Set
	Budget   *Budget          // of the connections that are opened; nil: a share of one of its own
	Observer network.Observer // is told of what is refused here; may be nil
}

// A Proxy is the Interceptor that opens TLS, sets secret headers, records and replays.
// It speaks HTTP/1.1 with both sides; of what is not HTTP it copies the bytes. It is safe
// for concurrent use.
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
	headerTime    = time.Minute     // that a guest has to finish a request's headers
	idleTime      = 2 * time.Minute // between two requests
	partialTime   = 2 * time.Second // after a first word that may become HTTP
	maxRequest    = 64 << 10        // bytes of a request's headers
	maxAnswer     = 128 << 10       // bytes of an answer's headers
)

// Intercept implements Interceptor.
func (p *Proxy) Intercept(ctx context.Context, guest net.Conn, to network.Target) bool {
	c := &connection{p: p, to: to.Address, name: network.BareName(to.Name), request: to.Request, scheme: "http"}
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

// Carry passes a connection on between guest and host until its end. HTTP goes through request by
// request, as to.Request asks.
func (p *Proxy) Carry(ctx context.Context, guest, host net.Conn, to network.Target) {
	c := &connection{p: p, to: to.Address, name: network.BareName(to.Name), request: to.Request, scheme: "http"}
	c.carry(ctx, newEager(guest), newEager(host))
}

// A connection is one that a Proxy serves.
type connection struct {
	p      *Proxy
	to     netip.AddrPort
	name   string // the host that was wanted; empty: not known
	scheme string // "https" once TLS was opened
	placed bool   // it has a place in the budget
	// request returns why a request for a host is refused, or ""; nil: the policy names none.
	request func(host string) string
}

// strict reports whether what is HTTP goes through request by request, and never as bytes.
func (c *connection) strict() bool { return c.request != nil || len(c.headers("")) > 0 }

// host is what the connection's other end is called.
func (c *connection) host() string {
	if c.name != "" {
		return c.name
	}
	return c.to.Addr().String()
}

// refused tells that the guest was not let do something.
func (c *connection) refused(reason string) { c.refusedFor(c.name, reason) }

// refusedFor is refused for a host other than the connection's.
func (c *connection) refusedFor(host, reason string) {
	if o := c.p.opts.Observer; o != nil {
		o.Refused(network.Refusal{At: time.Now(), Protocol: "tcp", Host: host, Address: c.to, Reason: network.Shorten(c.p.opts.Secrets.Mask(reason))})
	}
}

// headers are the secret headers for the connection's requests.
func (c *connection) headers(scheme string) secretHeaders {
	return secretHeaders(c.p.opts.Headers).of(scheme, c.host(), c.to)
}

func (c *connection) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return c.p.opts.Dialer.DialContext(ctx, "tcp", network.HostAddress(c.to).String())
}

// Below is the dialer and the resolver for a Stack whose Interceptor is p: they see what
// goes past it, as datagrams and lookups.
func (p *Proxy) Below() (network.Dialer, network.Resolver) {
	switch {
	case p.opts.Player != nil:
		return &tellingDialer{p}, &tellingResolver{p}
	case p.opts.Recorder != nil:
		return p.opts.Recorder.Dialer(p.opts.Dialer), p.opts.Recorder.Resolver(p.opts.Resolver)
	}
	return p.opts.Dialer, p.opts.Resolver
}

// opens says whether TLS on this connection is opened.
func (c *connection) opens() bool {
	return c.p.opts.CA != nil && (c.p.opts.Open || len(c.headers("https")) > 0)
}

// forward connects guest with the host that it wants.
func (c *connection) forward(ctx context.Context, guest *eagerConn) {
	upstream, err := c.dial(ctx)
	if err != nil {
		c.p.opts.Recorder.Stream(recording.Stream{Host: c.name, Address: c.to, Protocol: recording.ProtocolTCP, Failed: err.Error()})
		network.Reset(guest.Conn)
		return
	}
	defer func() { _ = upstream.Close() }()
	defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
	c.carry(ctx, guest, newEager(upstream))
}

// forwardHTTP passes requests on. What is none is answered with an error.
func (c *connection) forwardHTTP(ctx context.Context, guest, upstream *eagerConn) {
	f := c.forwarder(ctx, upstream)
	c.serveHTTP(guest, f)
	f.transport.CloseIdleConnections()
}

// openTLS ends the guest's TLS here, with a certificate of the sandbox's own authority,
// once the host's own has been verified.
func (c *connection) openTLS(ctx context.Context, guest, upstream *eagerConn) {
	var up *tls.Conn
	inner := tls.Server(guest, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name, err := c.serverName(hello)
		if err != nil {
			return nil, err
		}
		up = tls.Client(upstream, &tls.Config{ServerName: name, RootCAs: c.p.opts.Roots, NextProtos: withoutHTTP2(hello.SupportedProtos), MinVersion: tls.VersionTLS12})
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

// serverName is the host that a guest's ClientHello names, which has to be the one that
// the connection was allowed for.
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

// accept carries out the handshake with the guest.
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

// withoutHTTP2 are the protocols that a guest offers which can be spoken here.
func withoutHTTP2(offered []string) []string {
	var kept []string
	for _, p := range offered {
		if p != "h2" && p != "h2c" && !strings.HasPrefix(p, "h3") {
			kept = append(kept, p)
		}
	}
	return kept
}

// url is the address of a request, as recordings have it.
func (c *connection) url(req *http.Request) string {
	host := req.Host
	if host == "" {
		host = c.to.String()
	}
	return c.scheme + "://" + strings.ToLower(host) + req.URL.RequestURI()
}

// A digester is the digest of a body, masked as recordings are.
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

// passOn makes a proxy pass requests on as they are.
func passOn(r *httputil.ProxyRequest, scheme, host string) {
	if hidesRequests(strings.Join(r.Out.Header.Values("Upgrade"), ",")) {
		r.Out.Header.Del("Upgrade")
		r.Out.Header.Del("Connection")
		r.Out.Header.Del("Http2-Settings")
	}
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = scheme, host, r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // also where it is none that Go reads
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = v
		}
	}
}

// hidesRequests tells whether an Upgrade header asks for requests in a form that is not
// looked at: HTTP/2 in the clear (RFC 7540, 3.2), or TLS (RFC 2817). Whatever is between the
// names of protocols may separate them for a server.
func hidesRequests(upgrade string) bool {
	names := strings.FieldsFunc(strings.ToLower(upgrade), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' })
	return slices.ContainsFunc(names, func(name string) bool { return name == "h2c" || name == "h2" || name == "http" || name == "tls" })
}
