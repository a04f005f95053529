package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof/key"
)

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
		(status.Code == connect.CodeUnavailable || isAlert(sent)):
		return s.unreached(e)
	case e.Op == "gateway.path":
		return turnstone.Errorf("host.call", turnstone.KindInvalid, s.o.Address.String(),
			"has no such service at this path").WithHint("check the path at the end of the " +
			"address, and that client and server have the same version")
	case status.Code == connect.CodeUnauthenticated:
		return s.hinted(status, e, tokenHint(status.Reason))
	case sent != nil && !connect.IsWireError(sent) && foreign(sent.Message()):
		return turnstone.Errorf("host.call", turnstone.KindUnavailable, s.o.Address.String(),
			"another program than turn serve answers: %w", e.Err).
			WithHint("check the address, a proxy in front of the server, and that client and server " +
				"have the same version")
	case status.Code == connect.CodePermissionDenied && e.Hint == "":
		return s.hinted(status, e, "use a token with the right that is missing: turn token create "+
			"--scope")
	}
	return err
}

// foreign reports whether text is connect's about an answer of another protocol: its HTTP status, or
// its content type.
func foreign(text string) bool {
	return strings.HasPrefix(text, "invalid content-type") ||
		len(text) > 3 && text[3] == ' ' && strings.Trim(text[:3], "0123456789") == ""
}

// tokenHint says what the holder of a refused token can do: see the reasons of package auth.
func tokenHint(reason string) string {
	switch reason {
	case "expired", "revoked":
		return "set TURN_TOKEN to a new token, or store it with turn host add --token-file"
	case "not_yet_valid":
		return "compare the clocks of this machine and of the server"
	case "key", "issuer", "audience", "signature":
		return "it is a token of another server, or of an earlier name or key of this one: set " +
			"TURN_TOKEN to a token of this server, or store one with turn host add --token-file"
	}
	return "set TURN_TOKEN to a token of this server, or store one with turn host add --token-file"
}

// isAlert reports whether TLS ended a connection: unreached explains the alert.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
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
		return fail(turnstone.KindIntegrity, authorityHint(),
			"its certificate is signed by an unknown authority")
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
		return fail(turnstone.KindUnavailable, "check the name in the address, and this machine's DNS",
			"the name %s has no address: %s", dns.Name, dns.Err)
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

// authorityHint says how to trust an authority: a file in SSL_CERT_FILE that cannot be read is ignored
// by crypto/x509.
func authorityHint() string {
	if path := os.Getenv("SSL_CERT_FILE"); path != "" {
		if f, err := os.Open(path); err != nil {
			return "correct SSL_CERT_FILE, which names the authority's file: " + err.Error()
		} else if err := f.Close(); err == nil {
			return "check that SSL_CERT_FILE (" + path + ") has the certificate of this server's authority"
		}
	}
	return "name the authority's file in SSL_CERT_FILE if you trust it"
}

// refusedFor is when a channel that a limit refused may be opened: the answer of a WebSocket has no
// Retry-After that reaches here.
const refusedFor = time.Second

// refusedChannel returns the error of a WebSocket that the server refused. Reaching a limit passes:
// a turn that is followed is dialled again.
func (s *Server) refusedChannel(e *turnstone.Error) error {
	e.Subject = s.o.Address.String()
	if e.Kind == turnstone.KindExhausted {
		e.Kind = turnstone.KindUnavailable
		return &api.Status{RetryAfter: refusedFor, Err: e}
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
	if fault == channel.FaultExpired {
		return turnstone.Errorf("host.channel", turnstone.KindIntegrity, s.o.Address.String(),
			"the node's statement is not valid at this machine's time: %w", err).
			WithHint("compare the clocks of this machine and of the node: date -u")
	}
	hint := turnstone.HintOf(err)
	switch {
	case errors.Is(err, key.ErrRevoked):
		hint = "ask the node's operator for its new key, and trust that with turn host add --pin " +
			"FINGERPRINT: this client's list revokes the old one (turn key revoke)"
	case fault == channel.FaultUntrusted:
		hint = "compare the node's key with the server's operator; turn host add --pin FINGERPRINT " +
			"trusts it"
	}
	text := strings.ReplaceAll(string(fault), "_", " ")
	return turnstone.Errorf("host.channel", turnstone.KindIntegrity, s.o.Address.String(),
		"the connection to the node is not what it claims to be (%s): %w", text, err).WithHint(hint)
}

// maintenance are words of hints that only the operator of a node can follow, on its machine.
var maintenance = []string{"turn gc", "turn fsck", "turn doctor", "turn template prune",
	"config.toml", "TURN_KERNEL", "TURN_STORE", "TURN_RUNSC"}

// ForOperator returns a hint of a node for a client elsewhere, which cannot maintain the node.
func ForOperator(hint string) string {
	for _, word := range maintenance {
		if strings.Contains(hint, word) {
			return "ask the node's operator: " + hint
		}
	}
	return hint
}

// Operator reports whether the connection is over a socket of this user, who is the operator then.
func (s *Server) Operator() bool { return s.o.Own }
