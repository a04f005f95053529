// Package peers connects the roles of a server that run in several processes: over unix sockets of
// one user, or over TCP with mutual TLS. A certificate names the roles of its process as DNS names:
// gateway, controller, node. What a role may ask of another one depends on them.
package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/local"
	"turnstone.dev/turnstone/internal/server/tlsfiles"
)

// Bounds of connections.
const (
	handshakeTime = 10 * time.Second
	keepAlive     = 15 * time.Second // between two probes of a silent connection
	pingAfter     = 15 * time.Second // of silence, on HTTP/2
	idleTime      = 2 * time.Minute  // of a connection without a request
	maxHead       = 64 << 10         // of a request, in bytes: a token is in it
)

// roles are all roles that a certificate can name.
var roles = []string{config.Gateway, config.Controller, config.Node}

// Peers are the connections of this process to other roles. It is safe for concurrent use.
type Peers struct {
	c     config.Peers
	files *tlsfiles.Watcher
	log   *slog.Logger
}

// Open reads the certificates of the settings. The error is of kind Invalid if they cannot be used.
func Open(c config.Peers, log *slog.Logger) (*Peers, error) {
	files, err := tlsfiles.Open(tlsfiles.Files{Certificate: c.Certificate, Key: c.Key,
		Authority: c.Authority}, func(err error) {
		log.Error("certificates of roles cannot be read again", "error", err)
	})
	if err != nil {
		return nil, err
	}
	return &Peers{c: c, files: files, log: log}, nil
}

// Reload reads the certificates again. They are also read again when the files change.
func (p *Peers) Reload() error { return p.files.Reload() }

// Listen listens at the address of the settings, unix:PATH or HOST:PORT.
func (p *Peers) Listen(ctx context.Context) (net.Listener, error) {
	if path, ok := strings.CutPrefix(p.c.Listen, "unix:"); ok {
		return local.Listen(ctx, path, p.log)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.c.Listen)
	if err != nil {
		return nil, turnstone.NewError("server.listen", turnstone.KindUnavailable, p.c.Listen, err).
			WithHint(local.ListenHint(err, "peers.listen"))
	}
	return l, nil
}

// Serve answers other roles on l until ctx ends, and closes l. What runs then is ended.
func (p *Peers) Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	secure := l.Addr().Network() != "unix"
	protocols.SetUnencryptedHTTP2(!secure)
	s := &http.Server{Handler: h, Protocols: &protocols, MaxHeaderBytes: maxHead,
		ReadHeaderTimeout: handshakeTime, IdleTimeout: idleTime,
		HTTP2:       &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter},
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)}
	failed := make(chan error, 1)
	go func() {
		if secure {
			s.TLSConfig = p.server()
			failed <- s.ServeTLS(l, "", "")
		} else {
			failed <- s.Serve(l)
		}
	}()
	var err error
	select {
	case <-ctx.Done():
		cancel()
		_ = s.Close()
		<-failed
	case err = <-failed:
		_ = s.Close()
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return turnstone.NewError("server.peers", turnstone.KindUnavailable, l.Addr().String(), err)
	}
	return nil
}

// server is the TLS configuration of the listener. Each connection uses the newest certificates.
func (p *Peers) server() *tls.Config {
	c := p.files.Server("h2", "http/1.1")
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		s := p.files.State()
		if s.Certificate == nil || s.Authority == nil {
			return nil, errors.New("there is no certificate for other roles")
		}
		return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
			Certificates: []tls.Certificate{*s.Certificate},
			ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: s.Authority,
			// a resumed session would outlive an authority that was taken out of the file
			SessionTicketsDisabled: true,
			VerifyConnection: func(cs tls.ConnectionState) error {
				if len(rolesOf(cs)) == 0 {
					return errors.New("the certificate names no role: gateway, controller or node")
				}
				return nil
			}}, nil
	}
	return c
}

// rolesOf returns the roles of the other end's certificate.
func rolesOf(cs tls.ConnectionState) (all []string) {
	if len(cs.PeerCertificates) == 0 {
		return nil
	}
	for _, role := range roles {
		if names(cs.PeerCertificates[0], role) {
			all = append(all, role)
		}
	}
	return all
}

// names reports whether a certificate has the DNS name, without wildcards.
func names(c *x509.Certificate, name string) bool {
	for _, n := range c.DNSNames {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// Dial connects to a process with a role at unix:PATH or HOST:PORT. protocols are those of ALPN;
// none stands for HTTP/1.1. The error is of kind Unavailable.
func (p *Peers) Dial(ctx context.Context, address, role string, protocols ...string) (net.Conn,
	error) {
	fail := func(err error) (net.Conn, error) {
		return nil, turnstone.NewError("server.connect", turnstone.KindUnavailable,
			role+" "+address, err)
	}
	d := net.Dialer{Timeout: handshakeTime, KeepAlive: keepAlive}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return fail(err)
		}
		// the folder of a socket may not be private
		if err := local.CheckOwner(c); err != nil {
			_ = c.Close()
			return fail(err)
		}
		return c, nil
	}
	s := p.files.State()
	if s.Certificate == nil || s.Authority == nil {
		return fail(errors.New("there is no certificate for other roles"))
	}
	if len(protocols) == 0 {
		protocols = []string{"http/1.1"}
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	c, err := (&tls.Dialer{NetDialer: &d, Config: &tls.Config{MinVersion: tls.VersionTLS13,
		NextProtos: protocols, ServerName: role, RootCAs: s.Authority,
		Certificates: []tls.Certificate{*s.Certificate}}}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fail(err)
	}
	return c, nil
}

// Transport returns a transport for calls of a process with a role at an address. Its owner closes
// idle connections.
func (p *Peers) Transport(address, role string) *http.Transport {
	return transport(func(ctx context.Context) (net.Conn, error) {
		return p.Dial(ctx, address, role, "h2")
	})
}

// MemoryTransport is Transport for a role in this process.
func MemoryTransport(m *local.Memory) *http.Transport { return transport(m.Dial) }

// transport speaks HTTP/2 without TLS of its own: dial has secured the connection.
func transport(dial func(context.Context) (net.Conn, error)) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: &protocols, MaxResponseHeaderBytes: maxHead,
		IdleConnTimeout: idleTime, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx)
		}}
}

// Only passes requests of processes with one of the roles on to h. A process on a unix socket has
// all roles: it belongs to this user.
func Only(h http.Handler, allowed ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil {
			ok := false
			for _, has := range rolesOf(*r.TLS) {
				for _, role := range allowed {
					ok = ok || has == role
				}
			}
			if !ok {
				http.Error(w, "the certificate of this process names none of the roles "+
					strings.Join(allowed, ", "), http.StatusForbidden)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}
