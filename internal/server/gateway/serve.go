package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// Bounds of HTTP. A head has room for the largest token.
const (
	maxHead      = 32 << 10
	maxStreams   = 128 // of a connection of HTTP/2 at one time
	streamBuffer = 64 << 10
	frameSize    = 16 << 10
	pingAfter    = 30 * time.Second
	leftoverWait = 10 * time.Second // for handlers whose context has ended
)

// Serve answers callers of l until ctx ends, and closes l. Then it takes no new requests; watches
// end at once, and everything else has Limits.End to finish. It returns when all has ended. The
// error is of kind Unavailable if the listener fails.
func (g *Gateway) Serve(ctx context.Context, l net.Listener, o ServeOptions) error {
	all := g.network
	if l.Addr().Network() == "unix" {
		all = g.local
	}
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	bounded := &listener{Listener: l, all: all, often: g.connects, proxies: g.o.Proxies,
		secure: o.TLS != nil, slots: make(chan struct{}, farewells)}
	defer bounded.wg.Wait()
	s := g.server(base, all, o)
	failed := make(chan error, 1)
	go func() {
		if o.TLS != nil {
			failed <- s.ServeTLS(bounded, "", "")
		} else {
			failed <- s.Serve(bounded)
		}
	}()
	var err error
	select {
	case <-ctx.Done():
		g.finish(s)
		cancel(ending())
		_ = s.Close()
		<-failed
		g.leftover()
	case err = <-failed:
		cancel(ending())
		_ = s.Close()
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return turnstone.NewError("gateway.serve", turnstone.KindUnavailable, l.Addr().String(), err)
	}
	return nil
}

// finish waits for running requests and channels, within the limit. What is left then is ended.
func (g *Gateway) finish(s *http.Server) {
	done := g.calls.end(true)
	ctx, cancel := context.WithTimeout(context.Background(), g.o.Limits.End)
	defer cancel()
	_ = s.Shutdown(ctx) // the error is that of ctx
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// leftover ends what still runs, and waits for it.
func (g *Gateway) leftover() {
	select {
	case <-g.calls.end(false):
	case <-time.After(leftoverWait):
		g.log.Error("requests do not end")
	}
}

func (g *Gateway) server(base context.Context, all *connections, o ServeOptions) *http.Server {
	l := g.o.Limits
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(o.TLS == nil)
	var config *tls.Config
	if o.TLS != nil {
		config = o.TLS.Clone()
		config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	}
	return &http.Server{
		Handler: g.Handler(), TLSConfig: config, Protocols: &protocols,
		MaxHeaderBytes: maxHead, ReadHeaderTimeout: l.Handshake, IdleTimeout: l.Idle,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: frameSize,
			MaxReceiveBufferPerConnection: 2 * streamBuffer,
			MaxReceiveBufferPerStream:     streamBuffer,
			SendPingTimeout:               pingAfter, PingTimeout: pingAfter / 2, WriteByteTimeout: l.Stall},
		ErrorLog:    log.New(serverLog{g.log}, "", 0),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnState:   all.changed,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx = context.WithValue(ctx, connectionKey{}, connectionOf{c, all})
			if o.Context != nil {
				ctx = o.Context(ctx, plain(c))
			}
			return ctx
		},
	}
}

// serverLog takes what net/http logs: panics are faults of the server, all else is about callers.
type serverLog struct{ log *slog.Logger }

func (s serverLog) Write(p []byte) (int, error) {
	text := strings.TrimSpace(string(p))
	if strings.HasPrefix(text, "http: panic") || strings.HasPrefix(text, "http2: panic") {
		s.log.Error("a handler failed", "error", text)
	} else {
		s.log.Debug("a connection failed", "error", text)
	}
	return len(p), nil
}
