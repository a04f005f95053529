package network

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// Limits of a secret header's value, in bytes. A shorter value could not be masked.
const (
	MinHeaderValue = 4
	maxHeaderValue = 16 << 10
)

// unsettable are headers that control how, or to whom, a message is sent.
var unsettable = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive",
	"Upgrade", "Te", "Trailer", "Proxy-Connection", "Expect", "Accept-Encoding"}

// ParseSecretHeader parses "[SCHEME://]HOST[:PORT]=Name: value", where SCHEME is https (the
// default) or http. Its errors are of kind Invalid and contain no value.
func ParseSecretHeader(text string) (turnstone.SecretHeader, error) {
	where, header, ok := strings.Cut(text, "=")
	fail := func(format string, args ...any) (turnstone.SecretHeader, error) {
		if !ok {
			where = "" // it may be the value
		}
		return turnstone.SecretHeader{}, turnstone.Errorf("network.secret", turnstone.KindInvalid,
			"secret header "+fmt.Sprintf("%.80q", where), format, args...).
			WithHint("write HOST=Name: value, such as api.example.com=Authorization: Bearer …")
	}
	if !ok {
		return fail("there is no =")
	}
	h := turnstone.SecretHeader{Scheme: "https"}
	host := where
	if scheme, rest, ok := strings.Cut(where, "://"); ok {
		h.Scheme, host = strings.ToLower(scheme), rest
	}
	if h.Scheme != "https" && h.Scheme != "http" {
		return fail("the scheme is neither https nor http")
	}
	r, err := ParseRule(host)
	if err != nil {
		return fail("%w", errors.Unwrap(err))
	}
	switch {
	case strings.HasPrefix(r.Name, "*"), r.Name == "" && !r.Prefix.IsSingleIP():
		return fail("a secret goes to one host")
	case r.Name != "":
		h.Host = r.Name
	default:
		h.Host = r.Prefix.Addr().String()
	}
	h.Port = r.Port
	name, value, ok2 := strings.Cut(header, ":")
	h.Name, h.Value = http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
	switch {
	case !ok2 || h.Name == "" || !IsToken(h.Name):
		return fail("no header is named")
	case slices.Contains(unsettable, h.Name):
		return fail("the header %s cannot be set", h.Name)
	case len(h.Value) < MinHeaderValue:
		return fail("its value has less than %d characters, and could not be masked",
			MinHeaderValue)
	case len(h.Value) > maxHeaderValue:
		return fail("its value has more than %d bytes", maxHeaderValue)
	case strings.ContainsFunc(h.Value,
		func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return fail("its value contains a control character")
	}
	return h, nil
}

// IsToken reports whether s can be a header's name (RFC 9110, section 5.6.2).
func IsToken(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

// HeaderTexts returns the texts that must be masked everywhere: the header's value, and for a value
// like "Bearer TOKEN" (RFC 9110, section 11.6.2) also the TOKEN.
func HeaderTexts(h turnstone.SecretHeader) []string {
	values := []string{h.Value}
	if scheme, token, ok := strings.Cut(h.Value, " "); ok && IsToken(scheme) &&
		len(strings.TrimSpace(token)) >= MinHeaderValue {
		values = append(values, strings.TrimSpace(token))
	}
	return values
}
