package remote

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// TestReset checks that calls with an idempotency key are repeated when connections are reset, with
// HTTP/1.1 and with HTTP/2.
func TestReset(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	roots := certificate.Client().Transport.(*http.Transport)
	for _, scheme := range []string{"http", "https"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		times := make(chan struct{}, 100)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				times <- struct{}{}
				p := make([]byte, 10)
				if scheme == "https" {
					s := tls.Server(c, &tls.Config{NextProtos: []string{"h2"},
						Certificates: certificate.TLS.Certificates})
					_, _ = s.Read(p)
				} else {
					_, _ = c.Read(p)
				}
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		}()
		at, err := ParseAddress(scheme + "://" + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s := NewServer(ServerOptions{Address: at, TLS: roots.TLSClientConfig.Clone()})
		defer func() { _ = s.Close() }()
		_, err = s.Turns.StartTurn(t.Context(),
			connect.NewRequest(&v1.StartTurnRequest{IdempotencyKey: "k"}))
		if turnstone.KindOf(err) != turnstone.KindUnavailable || len(times) != maxTries {
			t.Errorf("%s: %v, after %d connections", scheme, err, len(times))
		}
	}
}
