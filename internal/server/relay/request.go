package relay

import (
	"crypto/sha1" // the handshake's own (RFC 6455, 4.2.2); it protects nothing
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// Bounds of the head of a client's request, for Limit.
const (
	maxRequestHead  = 16 << 10
	requestHeadTime = 10 * time.Second
	keepAliveTime   = time.Minute
)

// Limit sets the limits of a server that accepts upgrades where s has none: the size of a request's
// head, the time for it to arrive, and the time that a connection waits for a request.
func Limit(s *http.Server) {
	if s.MaxHeaderBytes == 0 {
		s.MaxHeaderBytes = maxRequestHead
	}
	if s.ReadHeaderTimeout == 0 {
		s.ReadHeaderTimeout = requestHeadTime
	}
	if s.IdleTimeout == 0 {
		s.IdleTimeout = keepAliveTime
	}
}

// A RefusedError says that an upgrade was refused, and with which status of HTTP.
type RefusedError struct {
	Status int
	Err    error
	// RetryAfter is the node's wish in seconds; empty: none.
	RetryAfter string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

func badRequest(status int, format string, args ...any) error {
	return turnstone.NewError("relay.upgrade", turnstone.KindInvalid, "the request",
		&RefusedError{Status: status, Err: fmt.Errorf(format, args...)}).
		WithHint("send a WebSocket upgrade as in RFC 6455, section 4.1")
}

// checkRequest reports why r is not a WebSocket upgrade without a body (RFC 6455, 4.2.1).
func checkRequest(r *http.Request) error {
	h := r.Header
	_, length := h["Content-Length"]
	switch {
	case r.ProtoMajor != 1 || r.ProtoMinor != 1:
		return badRequest(http.StatusHTTPVersionNotSupported,
			"is of %.20s; an upgrade needs HTTP/1.1", r.Proto)
	case r.Method != http.MethodGet:
		return badRequest(http.StatusMethodNotAllowed, "is %.20s; an upgrade needs GET", r.Method)
	case length, r.ContentLength != 0, len(r.TransferEncoding) > 0, len(r.Trailer) > 0:
		return badRequest(http.StatusBadRequest, "has a body")
	case len(h["Expect"]) > 0:
		return badRequest(http.StatusExpectationFailed, "has an Expect field")
	case !only(h["Upgrade"], "websocket"):
		return badRequest(http.StatusUpgradeRequired, "does not upgrade to websocket alone")
	case !hasToken(h["Connection"], "upgrade"):
		return badRequest(http.StatusBadRequest, "has no Connection field with upgrade")
	case !only(h["Sec-Websocket-Version"], "13"):
		return badRequest(http.StatusUpgradeRequired, "is not of WebSocket version 13")
	}
	keys := h["Sec-Websocket-Key"]
	if len(keys) != 1 || !isKey(keys[0]) {
		return badRequest(http.StatusBadRequest, "has no Sec-WebSocket-Key of 16 bytes in base64")
	}
	return nil
}

func isKey(s string) bool {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == 16 && len(s) == 24 // Go's decoder ignores line ends
}

// only reports whether a field is there once, with the given value.
func only(values []string, want string) bool {
	return len(values) == 1 && strings.EqualFold(values[0], want)
}

// hasToken reports whether a list of tokens has want in it.
func hasToken(values []string, want string) bool {
	return slices.ContainsFunc(tokens(values), func(t string) bool {
		return strings.EqualFold(t, want)
	})
}

// tokens splits a field that is a list.
func tokens(values []string) (all []string) {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if t = strings.Trim(t, " \t"); t != "" {
				all = append(all, t)
			}
		}
	}
	return all
}

// acceptOf returns the answer to a key (RFC 6455, 4.2.2).
func acceptOf(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// handshake are the fields that the relay itself writes to the node, and those that frame a
// message: the control plane cannot set them.
var handshake = []string{"Host", "Connection", "Upgrade", "Content-Length", "Transfer-Encoding",
	"Trailer", "Te", "Expect", "Keep-Alive", "Proxy-Connection", "Sec-Websocket-Key",
	"Sec-Websocket-Version", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions"}

// head returns the request for the node. Of the client's request it has the key, and subprotocols
// that the control plane permits; these are returned, too. Everything else is the control plane's.
func (u *Upgrade) head(r *http.Request) (head []byte, offered []string, err error) {
	if !strings.HasPrefix(u.Target, "/") || !visible(u.Target) {
		return nil, nil, internal("the target %.100q is not a path", u.Target)
	}
	if u.Host == "" || !visible(u.Host) {
		return nil, nil, internal("the host %.100q is not a name", u.Host)
	}
	for _, p := range tokens(r.Header["Sec-Websocket-Protocol"]) {
		if slices.Contains(u.Protocols, p) && !slices.Contains(offered, p) {
			offered = append(offered, p)
		}
	}
	b := []byte("GET " + u.Target + " HTTP/1.1\r\nHost: " + u.Host +
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13" +
		"\r\nSec-WebSocket-Key: " + r.Header.Get("Sec-WebSocket-Key") + "\r\n")
	if len(offered) > 0 {
		b = append(b, "Sec-WebSocket-Protocol: "+strings.Join(offered, ", ")+"\r\n"...)
	}
	names := make([]string, 0, len(u.Header))
	for name := range u.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !isToken(name) || slices.Contains(handshake, http.CanonicalHeaderKey(name)) {
			return nil, nil, internal("the field %.60q cannot be set", name)
		}
		for _, v := range u.Header[name] {
			if !isValue(v) {
				return nil, nil, internal("the field %s has a control character", name)
			}
			b = append(b, name+": "+v+"\r\n"...)
		}
	}
	if b = append(b, "\r\n"...); len(b) > u.maxHead() {
		return nil, nil, internal("the request for the node has %d bytes; the limit is %d",
			len(b), u.maxHead())
	}
	return b, offered, nil
}

func internal(format string, args ...any) error {
	return turnstone.NewError("relay.upgrade", turnstone.KindInternal, "the upgrade",
		&RefusedError{Status: http.StatusInternalServerError, Err: fmt.Errorf(format, args...)})
}

// visible reports whether s has only visible characters of ASCII.
func visible(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// isToken reports whether s is a token (RFC 9110, 5.6.2), such as the name of a field.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// isValue reports whether s can be the value of a field: no control character except a tab, and no
// space around it.
func isValue(s string) bool {
	if s != strings.Trim(s, " \t") {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// StatusOf returns the status of HTTP for an error of Forward.
func StatusOf(err error) int {
	var e *RefusedError
	if errors.As(err, &e) {
		return e.Status
	}
	switch turnstone.KindOf(err) {
	case turnstone.KindTimeout:
		return http.StatusGatewayTimeout
	case turnstone.KindInternal:
		return http.StatusInternalServerError
	}
	return http.StatusBadGateway
}
