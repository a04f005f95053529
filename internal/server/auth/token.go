package auth

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

// Bounds of an untrusted token, in bytes.
const (
	MaxToken  = 16 << 10 // a longer token is refused before anything is parsed
	maxHeader = 2 << 10  // decoded
	maxSig    = 1 << 10  // decoded: RSA with 8192 bits
)

// A Token is a signed token. Formatting and logging it does not reveal it.
type Token string

const hidden = "[token]"

// String returns a text that stands for the token.
func (t Token) String() string { return hidden }

// Format writes the text that stands for the token, whatever the verb.
func (t Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// LogValue implements slog.LogValuer.
func (t Token) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalJSON writes the text that stands for the token. An answer to its owner calls Reveal.
func (t Token) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// Reveal returns the token.
func (t Token) Reveal() string { return string(t) }

// Bearer returns the token of a request's one Authorization header (RFC 6750). The error has the
// Reason Missing if there is none, and Malformed if there are several or of another scheme.
func Bearer(h http.Header) (string, error) {
	all := h.Values("Authorization")
	if len(all) == 0 {
		return "", refuse("auth.bearer", Missing, "is missing")
	}
	if len(all) > 1 {
		return "", refuse("auth.bearer", Malformed, "is there %d times", len(all))
	}
	scheme, token, ok := strings.Cut(all[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", refuse("auth.bearer", Malformed,
			"is not in a header Authorization: Bearer TOKEN")
	}
	return token, nil
}

// A parsed token is one whose form is right. Nothing in it is verified.
type parsed struct {
	raw           string
	alg, kid, typ string // typ and kid may be empty
	payload       []byte
	claims        map[string]json.RawMessage
	issuer        string
}

// foreign are parameters of a header that bring a key or where to find one, or that change what the
// rest means. "crit" is among them because no extension is supported (RFC 7515, 4.1.11).
var foreign = []string{"jwk", "jku", "x5u", "x5c", "crit", "b64", "zip", "enc", "epk", "p2c", "cty"}

// parse checks the form of a token. It uses no key and no network.
func parse(token string) (*parsed, error) {
	bad := func(r Reason, format string, args ...any) (*parsed, error) {
		return nil, refuse("auth.parse", r, format, args...)
	}
	if len(token) > MaxToken {
		return bad(TooLarge, "has %d bytes; the limit is %d", len(token), MaxToken)
	}
	if token == "" {
		return bad(Missing, "is empty")
	}
	if n := strings.Count(token, "."); n != 2 {
		return bad(Malformed, "does not have three parts")
	}
	head, rest, _ := strings.Cut(token, ".")
	body, sig, _ := strings.Cut(rest, ".")
	p := &parsed{raw: token}
	header, err := segment(head, maxHeader)
	if err != nil {
		return bad(Malformed, "its header %w", err)
	}
	fields, err := object(header)
	if err != nil {
		return bad(Malformed, "its header %w", err)
	}
	// The algorithm comes before the signature, so that an unsigned token has its own reason.
	if err := p.header(fields); err != nil {
		return nil, err
	}
	if p.payload, err = segment(body, MaxToken); err != nil {
		return bad(Malformed, "its claims: its part %w", err)
	}
	if p.claims, err = object(p.payload); err != nil {
		return bad(Malformed, "its set of claims %w", err)
	}
	if _, err = segment(sig, maxSig); err != nil {
		return bad(Malformed, "its signature %w", err)
	}
	if p.issuer, err = text(p.claims["iss"], maxText); err != nil {
		return bad(BadClaims, "iss %w", err)
	}
	return p, nil
}

func (p *parsed) header(fields map[string]json.RawMessage) (err error) {
	for _, name := range foreign {
		if fields[name] != nil {
			return refuse("auth.parse", BadHeader, "its header has %s, which is not accepted", name)
		}
	}
	if p.alg, err = text(fields["alg"], 20); err != nil {
		return refuse("auth.parse", Malformed, "alg of its header %w", err)
	}
	if supported[p.alg].kind == 0 {
		return refuse("auth.parse", Algorithm, "is signed with %q, which is not accepted", p.alg)
	}
	if p.kid, err = text(fields["kid"], maxText); err != nil {
		return refuse("auth.parse", UnknownKey, "kid of its header %w", err)
	}
	if fields["typ"] == nil {
		return nil
	}
	if p.typ, err = text(fields["typ"], 40); err != nil {
		return refuse("auth.parse", Malformed, "typ of its header %w", err)
	}
	// RFC 7515, 4.1.9: the prefix may be left out, and case does not matter.
	p.typ = strings.TrimPrefix(strings.ToLower(p.typ), "application/")
	return nil
}

// segment decodes base64url without padding, in the only spelling of its bytes: the decoder of the
// standard library alone ignores line ends, and without Strict it ignores bits.
func segment(s string, limit int) ([]byte, error) {
	if s == "" {
		return nil, fmt.Errorf("is empty")
	}
	if len(s) > base64.RawURLEncoding.EncodedLen(limit) {
		return nil, fmt.Errorf("has %d bytes; the limit is %d", len(s), limit)
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return nil, fmt.Errorf("is not base64url")
		}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("is not base64url in its only spelling")
	}
	return b, nil
}
