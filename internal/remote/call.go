package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
)

// Bounds of repetitions of a call. The pause is doubled.
const (
	maxTries   = 4
	retryPause = 100 * time.Millisecond
	maxWait    = 10 * time.Second // that a server may ask for
)

// A caller adds the token to calls, repeats what is safe to repeat, and explains errors. It is a
// connect.Interceptor.
type caller struct {
	server *Server
	pause  time.Duration // before the first repetition
}

// WrapUnary implements connect.Interceptor.
func (c *caller) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		pause := c.pause
		for try := 1; ; try++ {
			auth, err := c.server.authorization()
			if err != nil {
				return nil, err
			}
			if auth != "" {
				r.Header().Set("Authorization", auth)
			}
			a, err := next(ctx, r)
			if err == nil {
				return a, nil
			}
			err = c.server.explain(err)
			wait := max(pause, api.RetryAfter(err))
			if try == maxTries || !repeatable(r) || !api.Retryable(err) || wait > maxWait ||
				ctx.Err() != nil {
				return nil, err
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil, err
			}
			pause *= 2
		}
	}
}

// asks are the calls that answer a statement: one more of them changes nothing.
var asks = map[string]bool{connectv1.TurnServiceConnectTurnProcedure: true,
	connectv1.SessionServiceConnectNodeProcedure:       true,
	connectv1.SessionServiceConnectSessionProcedure:    true,
	connectv1.SandboxServiceConnectSandboxProcedure:    true,
	connectv1.TemplateServiceConnectTemplatesProcedure: true}

// repeatable reports whether a call whose answer was lost can be made again: it has no effect, or
// its idempotency key makes the server do it once.
func repeatable(r connect.AnyRequest) bool {
	spec := r.Spec()
	if spec.IdempotencyLevel == connect.IdempotencyNoSideEffects || asks[spec.Procedure] {
		return true
	}
	m, ok := r.Any().(proto.Message)
	return ok && api.IdempotencyKey(m) != ""
}

// WrapStreamingClient implements connect.Interceptor. Streams are not repeated: a watch begins with
// a list, which only its caller can compare.
func (c *caller) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		auth, err := c.server.authorization()
		if auth != "" {
			conn.RequestHeader().Set("Authorization", auth)
		}
		return &explained{conn, c.server, err}
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (c *caller) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// explained is a stream whose errors are explained.
type explained struct {
	connect.StreamingClientConn
	server *Server
	failed error // nothing is sent then
}

func (e *explained) Send(m any) error {
	if e.failed != nil {
		return e.failed
	}
	return e.server.explain(e.StreamingClientConn.Send(m))
}

func (e *explained) Receive(m any) error {
	if e.failed != nil {
		return e.failed
	}
	return e.server.explain(e.StreamingClientConn.Receive(m))
}

// explain returns the error of a call as a *turnstone.Error that says what to do.
func (s *Server) explain(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	var own *turnstone.Error
	var sent *connect.Error
	if errors.As(err, &sent) && !connect.IsWireError(sent) && errors.As(sent.Unwrap(), &own) {
		return own // such as of a redirection
	}
	err = api.FromConnect(err)
	var status *api.Status
	if !errors.As(err, &status) {
		return s.unreached(err)
	}
	var e *turnstone.Error
	if !errors.As(status.Err, &e) {
		return err
	}
	switch {
	case sent != nil && !connect.IsWireError(sent) &&
		(status.Code == connect.CodeUnavailable || lostConnection(sent)):
		return s.unreached(e)
	case status.Code == connect.CodeUnauthenticated && status.Reason == "expired":
		return s.hinted(status, e, "set TURN_TOKEN to a new token, or store it with turn host add "+
			"--token-file")
	case status.Code == connect.CodeUnauthenticated:
		return s.hinted(status, e, "set TURN_TOKEN to a token of this server, or store one with "+
			"turn host add --token-file")
	case status.Code == connect.CodePermissionDenied && e.Hint == "":
		return s.hinted(status, e, "use a token with the right that is missing: turn token create "+
			"--scope")
	}
	return err
}

// lostConnection reports whether a connection failed, whatever code connect gives its error.
func lostConnection(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.ErrUnexpectedEOF)
}

// hinted is the status with a subject and a hint for its error, if there is none.
func (s *Server) hinted(status *api.Status, e *turnstone.Error, hint string) error {
	if e.Subject == "" {
		e.Subject = s.o.Address.String()
	}
	_ = e.WithHint(hint)
	return status
}

// unreached returns the error of a connection that did not come about.
func (s *Server) unreached(err error) error {
	name := s.o.Address.String()
	fail := func(kind turnstone.Kind, hint string, format string, args ...any) error {
		return turnstone.Errorf("host.connect", kind, name, format, args...).WithHint(hint)
	}
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	var own *turnstone.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fail(turnstone.KindCanceled, "", "%w", context.Canceled)
	case errors.As(err, &unknown):
		return fail(turnstone.KindIntegrity, "name the authority's file in SSL_CERT_FILE if you "+
			"trust it", "its certificate is signed by an unknown authority")
	case errors.As(err, &host):
		return fail(turnstone.KindIntegrity, "use the name of the certificate in the address",
			"its certificate is for another name")
	case errors.As(err, &invalid):
		return fail(turnstone.KindIntegrity, "compare the clocks of this machine and the server",
			"its certificate is not valid: %w", invalid)
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return fail(turnstone.KindUnavailable, "write http:// if the server is on this machine "+
			"and has no certificate", "does not speak TLS")
	case errors.As(err, &dns):
		return fail(turnstone.KindUnavailable, "check the address with turn host ls", "its name %s "+
			"is not known", dns.Name)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return fail(turnstone.KindUnavailable, "start the server with turn serve, or select another "+
			"host with turn host use", "no server answers")
	case errors.As(err, &own) && own.Kind == turnstone.KindInvalid && own.Op == "host.connect":
		return own
	case errors.As(err, &own) && own.Op == "websocket.dial":
		return s.refusedChannel(own)
	}
	return fail(turnstone.KindUnavailable, "check that the server runs and can be reached",
		"does not answer: %w", cause(err))
}

// refusedChannel returns the error of a WebSocket that the server refused. Reaching a limit passes:
// a turn that is followed is dialled again.
func (s *Server) refusedChannel(e *turnstone.Error) error {
	e.Subject = s.o.Address.String()
	if e.Kind == turnstone.KindExhausted {
		e.Kind = turnstone.KindUnavailable
	}
	return e
}

// cause returns the innermost error with a text for users: the operation and the address that
// package net repeats are known.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	var own *turnstone.Error
	if errors.As(err, &own) && own.Err != nil {
		return own.Err
	}
	return err
}

// distrusted names the server whose answers were manipulated.
func (s *Server) distrusted(err error) error {
	fault := channel.FaultOf(err)
	if fault == "" {
		return err
	}
	if fault == channel.FaultTruncated {
		return turnstone.NewError("host.channel", turnstone.KindDead, s.o.Address.String(), err).
			WithHint(turnstone.HintOf(err))
	}
	hint := turnstone.HintOf(err)
	if fault == channel.FaultUntrusted {
		hint = "compare the node's key with the server's operator; turn host add --pin FINGERPRINT " +
			"trusts it"
	}
	text := strings.ReplaceAll(string(fault), "_", " ")
	return turnstone.Errorf("host.channel", turnstone.KindIntegrity, s.o.Address.String(),
		"the connection to the node is not what it claims to be (%s): %w", text, err).WithHint(hint)
}
