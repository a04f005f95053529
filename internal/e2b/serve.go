package e2b

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/patience"
)

// Limits bound the callers of the door.
type Limits struct {
	Handshake time.Duration // of TLS, and of the head of a request
	Idle      time.Duration // how long a connection may be silent between requests
	// Stall is how long a caller may send nothing of a body, or read nothing of an answer.
	Stall time.Duration
	End   time.Duration // how long requests to the API may run after the end of Serve
}

// Bounds of HTTP. A head has room for the largest token.
const (
	maxHead      = 48 << 10
	maxStreams   = 250 // of a connection of HTTP/2 at one time
	streamBuffer = 64 << 10
)

// Serve answers callers of l until ctx ends, and closes l. Requests to sandboxes end at once then.
// The error is of kind Unavailable if the listener fails.
func (d *Door) Serve(ctx context.Context, l net.Listener, config *tls.Config, limits Limits) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(config == nil)
	if config != nil {
		config = config.Clone()
		config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	}
	s := &http.Server{Handler: patience.Handler(d, limits.Stall), TLSConfig: config, Protocols: &protocols,
		MaxHeaderBytes: maxHead, ReadHeaderTimeout: limits.Handshake, IdleTimeout: limits.Idle,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: limits.Idle / 2,
			MaxReceiveBufferPerConnection: 4 * streamBuffer, MaxReceiveBufferPerStream: streamBuffer,
			WriteByteTimeout: limits.Stall},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:    log.New(io.Discard, "", 0)} // all of it is about callers
	failed := make(chan error, 1)
	go func() {
		if config != nil {
			failed <- s.ServeTLS(l, "", "")
		} else {
			failed <- s.Serve(l)
		}
	}()
	select {
	case err := <-failed:
		_ = s.Close()
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return turnstone.NewError("e2b.serve", turnstone.KindUnavailable, l.Addr().String(), err)
	case <-ctx.Done():
	}
	d.stop()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), limits.End)
	defer cancel()
	_ = s.Shutdown(end) // the error is that of end
	_ = s.Close()
	<-failed
	return nil
}

// connKey finds the connection of a request in its context.
type connKey struct{}

// cutOff lets the connection of a request whose answer is cut off end with a reset, as a stream of
// HTTP/2 does, for callers with the library connectrpc: clients of E2B from 2.38 to 2.51 take only that
// for a lost connection. Those before, with httpcore, take only an end without a reset for one.
func cutOff(r *http.Request) {
	if r.ProtoMajor != 1 || !strings.HasPrefix(r.UserAgent(), "connectrpc/") {
		return
	}
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	for {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		c = over.NetConn()
	}
}
