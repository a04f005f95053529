package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// TestLostAnswer: a server whose connections end in the middle of an answer is one that cannot be reached, in each
// protocol and wherever in the answer that is: the caller may ask again.
func TestLostAnswer(t *testing.T) {
	for name, two := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		for where, part := range map[string]struct {
			kind string
			body []byte
		}{
			"before a message": {"application/proto", nil},
			"in a message":     {"application/proto", []byte{10, 100, 10}},
			"before a frame":   {"application/grpc", nil},
			"in a prefix":      {"application/grpc", []byte{0, 0}},
			"in a frame":       {"application/grpc", frame(make([]byte, 100))[:20]},
		} {
			t.Run(name+" "+where, func(t *testing.T) {
				kill := func() {}
				srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", part.kind)
					_, _ = w.Write(part.body)
					_ = http.NewResponseController(w).Flush()
					kill()
					<-r.Context().Done()
				}))
				srv.Config.Protocols = new(http.Protocols)
				srv.Config.Protocols.SetHTTP1(!two)
				srv.Config.Protocols.SetUnencryptedHTTP2(two)
				srv.Start()
				kill = srv.CloseClientConnections
				defer srv.Close()
				options := ClientOptions()
				if part.kind == "application/grpc" {
					options = append(options, connect.WithGRPC())
				}
				way := &http.Transport{Protocols: srv.Config.Protocols}
				defer way.CloseIdleConnections()
				c := connectv1.NewSandboxServiceClient(&http.Client{Transport: way}, srv.URL, options...)
				_, err := c.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{}))
				if !Unreached(t.Context(), err) {
					t.Errorf("%v: the server was reached", err)
				}
				if err = FromConnect(err); turnstone.KindOf(err) != turnstone.KindUnavailable || !Retryable(err) {
					t.Errorf("%v is %s", err, turnstone.KindOf(err))
				}
			})
		}
	}
}

// TestResetAnswer: so is one whose kernel resets them.
func TestResetAnswer(t *testing.T) {
	for name, part := range map[string]string{"before an answer": "", "in an answer": "HTTP/1.1 200 OK\r\n" +
		"Content-Type: application/proto\r\nContent-Length: 100\r\n\r\n\x0a"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, part)
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}))
		c := connectv1.NewSandboxServiceClient(srv.Client(), srv.URL, ClientOptions()...)
		_, err := c.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{}))
		if !Unreached(t.Context(), err) {
			t.Errorf("%s: %v: the server was reached", name, err)
		}
		if err = FromConnect(err); turnstone.KindOf(err) != turnstone.KindUnavailable || !Retryable(err) {
			t.Errorf("%s: %v is %s", name, err, turnstone.KindOf(err))
		}
		srv.Close()
	}
	// A call that its caller cancels is still canceled.
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer srv.Close()
	c := connectv1.NewSandboxServiceClient(srv.Client(), srv.URL, ClientOptions()...)
	_, err := c.GetSandbox(ctx, connect.NewRequest(&v1.GetSandboxRequest{}))
	if Unreached(ctx, err) {
		t.Errorf("%v: the caller has ended the call", err)
	}
	if err = FromConnect(err); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("%v is %s", err, turnstone.KindOf(err))
	}
}
