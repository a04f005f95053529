package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// maxFields is the number of fields that an answer may have.
const maxFields = 64

// readHead reads up to the empty line that ends a head of at most limit bytes. rest is what came
// after it.
func readHead(r io.Reader, limit int) (head, rest []byte, err error) {
	b := make([]byte, 0, min(limit, 1<<10))
	for {
		if len(b) == cap(b) {
			if cap(b) >= limit {
				return nil, nil, fmt.Errorf("the head has more than %d bytes", limit)
			}
			b = slices.Grow(b, min(cap(b), limit-cap(b)))
			b = b[:len(b):min(cap(b), limit)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		from := max(len(b)-3, 0)
		b = b[:len(b)+n]
		if i := bytes.Index(b[from:], []byte("\r\n\r\n")); i >= 0 {
			end := from + i + 4
			return b[:end], b[end:], nil
		}
		if errors.Is(err, io.EOF) {
			return nil, nil, io.ErrUnexpectedEOF
		} else if err != nil {
			return nil, nil, err
		}
	}
}

// An answer is the head of a node's answer, with canonical names of fields.
type answer struct {
	status int
	fields http.Header
}

// parseAnswer parses a head with its empty line (RFC 9112, 4 and 5). It is strict: no line is
// folded, and each ends with CR and LF.
func parseAnswer(head []byte) (a answer, err error) {
	text, ok := strings.CutSuffix(string(head), "\r\n\r\n")
	if !ok {
		return a, errors.New("the head has no end")
	}
	lines := strings.Split(text, "\r\n")
	if len(lines)-1 > maxFields {
		return a, fmt.Errorf("the head has more than %d fields", maxFields)
	}
	rest, ok := strings.CutPrefix(lines[0], "HTTP/1.1 ")
	if !ok || len(rest) < 4 || rest[3] != ' ' || !isReason(rest[4:]) {
		return a, errors.New("the status line is malformed")
	}
	for _, c := range rest[:3] {
		if c < '0' || c > '9' {
			return a, errors.New("the status is not a number")
		}
		a.status = a.status*10 + int(c-'0')
	}
	if a.status < 100 {
		return a, errors.New("the status is less than 100")
	}
	a.fields = http.Header{}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !ok || !isToken(name) || !isValue(value) {
			return a, errors.New("a field is malformed")
		}
		a.fields.Add(name, value)
	}
	return a, nil
}

// isReason reports whether s can be the text after a status.
func isReason(s string) bool { return isValue(strings.Trim(s, " \t")) }

// check reports why an answer is not the switch of protocols that key and the offered subprotocols
// asked for (RFC 6455, 4.1).
func (a answer) check(key string, offered []string) error {
	f := a.fields
	protocols := f["Sec-Websocket-Protocol"]
	switch {
	case a.status != http.StatusSwitchingProtocols:
		return a.refused()
	case !only(f["Upgrade"], "websocket"), !hasToken(f["Connection"], "upgrade"):
		return badAnswer("does not upgrade to websocket")
	case len(f["Sec-Websocket-Accept"]) != 1 || f["Sec-Websocket-Accept"][0] != acceptOf(key):
		return badAnswer("is not for this request")
	case len(f["Content-Length"]) > 0, len(f["Transfer-Encoding"]) > 0:
		return badAnswer("has a body")
	case len(f["Sec-Websocket-Extensions"]) > 0:
		return badAnswer("has an extension that nobody asked for")
	case len(protocols) > 1, len(protocols) == 1 && !slices.Contains(offered, protocols[0]):
		return badAnswer("has a subprotocol that nobody asked for")
	}
	return nil
}

func badAnswer(format string, args ...any) error {
	return turnstone.NewError("relay.upgrade", turnstone.KindIntegrity, "the node's answer",
		&RefusedError{Status: http.StatusBadGateway, Err: fmt.Errorf(format, args...)}).
		WithHint("check that the node is one of this server, and of the same version")
}

// refused is the error of an answer that switches nothing. Statuses that mean the same to the
// client are passed on; others are the node's own trouble.
func (a answer) refused() error {
	kind := turnstone.KindUnavailable
	e := &RefusedError{Status: a.status, Err: fmt.Errorf("the status is %d", a.status)}
	switch a.status {
	case http.StatusForbidden, http.StatusConflict:
		kind = turnstone.KindInvalid
	case http.StatusNotFound, http.StatusGone:
		kind = turnstone.KindNotFound
	case http.StatusTooManyRequests:
		kind = turnstone.KindExhausted
	case http.StatusServiceUnavailable:
	default:
		e.Status = http.StatusBadGateway
	}
	after := a.fields.Get("Retry-After")
	if len(after) <= 6 && strings.Trim(after, "0123456789") == "" {
		e.RetryAfter = after
	}
	return turnstone.NewError("relay.upgrade", kind, "the node", e)
}
