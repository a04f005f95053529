package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/textproto"
	"slices"
	"sync"

	"turnstone.dev/turnstone/internal/duplex"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/recording"
)

// A forwarder forwards the requests of a connection to its host.
type forwarder struct {
	c         *connection
	transport *http.Transport
	proxy     http.Handler
	secrets   secretHeaders
	head      headCounter // of the answers
}

// A countedConn counts the lines of the answers' headers.
type countedConn struct {
	net.Conn
	head *headCounter
}

// Read implements net.Conn.
func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if many := c.head.saw(p[:n]); many != nil {
		return 0, many
	}
	return n, err
}

// forwarder returns a forwarder whose first connection is upstream.
func (c *connection) forwarder(ctx context.Context, upstream net.Conn) *forwarder {
	f := &forwarder{c: c, secrets: c.headers(c.scheme)}
	if c.scheme == "http" && len(f.secrets) > 0 && !c.vouched(ctx) {
		c.refused("its address is none of " + c.host() + "'s: the secret was not sent")
		f.secrets = nil
	}
	var once sync.Once
	dial := func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		once.Do(func() { conn = upstream })
		if conn == nil {
			conn, err = c.again(ctx) // the host has ended the first connection
		}
		if err != nil {
			return nil, err
		}
		return countedConn{conn, &f.head}, nil
	}
	f.transport = &http.Transport{DialContext: dial, DialTLSContext: dial, DisableCompression: true,
		MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1,
		MaxResponseHeaderBytes: maxAnswer, TLSNextProto: map[string]func(string,
			*tls.Conn) http.RoundTripper{}}
	f.proxy = duplex.Handler(&httputil.ReverseProxy{Transport: f, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0),
		Rewrite:  f.rewrite, ModifyResponse: f.response, ErrorHandler: f.failed})
	return f
}

// vouched reports whether the guest's destination is an address of the host. With TLS the host's
// certificate proves it.
func (c *connection) vouched(ctx context.Context) bool {
	if c.name == "" {
		return true // the secret is for the address
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	addrs, err := c.p.opts.Resolver.LookupNetIP(ctx, "ip", c.name)
	return err == nil && slices.ContainsFunc(addrs,
		func(a netip.Addr) bool { return network.Embedded(a) == network.HostAddress(c.to).Addr() })
}

// again opens another connection to the host.
func (c *connection) again(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err != nil || c.scheme == "http" {
		return conn, err
	}
	up := tls.Client(conn, &tls.Config{ServerName: c.host(), RootCAs: c.p.opts.Roots,
		NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	if err := up.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return up, nil
}

// recordKey finds a request's record in its context.
type recordKey struct{}

// ServeHTTP implements http.Handler.
func (f *forwarder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if rec := f.c.p.opts.Recorder.Request(req.Method, f.c.url(req), f.c.to); rec != nil {
		req = req.WithContext(context.WithValue(req.Context(), recordKey{}, rec))
		sum := newDigester(f.c.p.opts.Secrets)
		body := &sentBody{in: req.Body, sum: sum, rec: rec}
		defer body.end()
		rec.Whole = body.end
		if req.Body != nil && req.Body != http.NoBody {
			req.Body = body
		}
	}
	quiet(w)
	f.proxy.ServeHTTP(w, req)
}

// RoundTrip implements http.RoundTripper. It masks secrets in informational answers (status 100 to
// 199), which httputil.ReverseProxy forwards by itself.
func (f *forwarder) RoundTrip(req *http.Request) (*http.Response, error) {
	if needles := f.secrets.needles(); len(needles) > 0 {
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				maskHeader(http.Header(h), needles)
				return nil
			}}))
	}
	f.head.begin() // requests of a connection come in sequence
	defer f.head.end()
	return f.transport.RoundTrip(req)
}

// quiet prevents net/http from adding headers that the answer does not have.
func quiet(w http.ResponseWriter) {
	w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
}

// A sentBody digests a request's body.
type sentBody struct {
	in  io.ReadCloser
	rec *recording.RequestRecord

	mu  sync.Mutex
	sum *digester // nil: already reported
}

// Read implements io.Reader.
func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sum != nil {
		_, _ = b.sum.w.Write(p[:n])
	}
	return n, err
}

// Close implements io.Closer.
func (b *sentBody) Close() error { return b.in.Close() }

// end reports the body.
func (b *sentBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sum != nil {
		b.rec.Sent(b.sum.digest())
		b.sum = nil
	}
}

func (f *forwarder) rewrite(r *httputil.ProxyRequest) {
	host := r.In.Host
	if host == "" {
		host = f.c.to.String()
	}
	passOn(r, f.c.scheme, host)
	f.secrets.set(r.Out.Header)
}

// response masks and records an answer. An error becomes the answer: see failed.
func (f *forwarder) response(res *http.Response) error {
	if res.StatusCode < 100 { // net/http reads such a status, and cannot write it
		return fmt.Errorf("the answer has the status %03d", res.StatusCode)
	}
	needles := f.secrets.needles()
	maskHeader(res.Header, needles)
	rec, _ := res.Request.Context().Value(recordKey{}).(*recording.RequestRecord)
	if res.StatusCode == http.StatusSwitchingProtocols {
		rec.Ended(errors.New("the protocol after HTTP is not recorded"))
		if rec != nil {
			f.c.p.opts.Recorder.Cannot("what follows " + res.Request.Method + " " +
				f.c.url(res.Request) + " (" + res.Header.Get("Upgrade") + ")")
		}
		return nil
	}
	rec.Answered(res.StatusCode, res.Header)
	res.Body = &receivedBody{in: newMaskReader(res.Body, needles), rec: rec,
		trailed: func() { maskHeader(res.Trailer, needles) }}
	return nil
}

// failed answers a request that got no answer.
func (f *forwarder) failed(w http.ResponseWriter, req *http.Request, err error) {
	rec, _ := req.Context().Value(recordKey{}).(*recording.RequestRecord)
	rec.Ended(err)
	text := []byte(err.Error()) // contains parts of a malformed answer
	blot(text, f.secrets.needles())
	http.Error(w, "turnstone: no answer from "+f.c.host()+": "+network.Shorten(string(text)),
		http.StatusBadGateway)
}

// A receivedBody records an answer's body.
type receivedBody struct {
	in  io.ReadCloser
	rec *recording.RequestRecord
	// trailed is called when the answer is over and its trailers are available.
	trailed func()
	once    sync.Once
}

// Read implements io.Reader.
func (b *receivedBody) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	b.rec.Received(p[:n])
	if err != nil {
		b.trailed()
		b.end(err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *receivedBody) Close() error {
	b.end(errors.New("the guest did not wait for the answer's end"))
	return b.in.Close()
}

func (b *receivedBody) end(err error) {
	b.once.Do(func() {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		b.rec.Ended(err) // before the guest has the last byte, with which its turn may end
	})
}
