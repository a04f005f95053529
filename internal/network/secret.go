package network

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// A SecretHeader is a header that is put into requests to one host on their way out.
// The guest never has its value.
type SecretHeader struct {
	Scheme string `json:"scheme"` // "https", or "http" where somebody wrote so
	Host   string `json:"host"`   // a name or an address; lower case
	Port   uint16 `json:"port"`   // 0: every port
	Name   string `json:"name"`   // as "Authorization"
	Value  string `json:"value"`
}

// Limits of a secret header's value, in bytes. A shorter one could not be masked.
const (
	MinHeaderValue = 4
	MaxHeaderValue = 16 << 10
)

// unsettable are headers that say how a message is sent, or to whom.
var unsettable = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Upgrade", "Te", "Trailer",
	"Proxy-Connection", "Expect", "Accept-Encoding"}

// ParseSecretHeader reads "[SCHEME://]HOST[:PORT]=Name: value", where SCHEME is https
// (the default) or http. Its errors are of kind Invalid and hold no value.
func ParseSecretHeader(text string) (SecretHeader, error) {
	where, header, ok := strings.Cut(text, "=")
	fail := func(format string, args ...any) (SecretHeader, error) {
		if !ok {
			where = "" // it may be the value
		}
		return SecretHeader{}, turnstone.Errorf("network.secret", turnstone.KindInvalid, "secret header "+fmt.Sprintf("%.80q", where),
			format, args...).
			WithHint("write HOST=Name: value, as api.example.com=Authorization: Bearer …")
	}
	if !ok {
		return fail("there is no =")
	}
	h := SecretHeader{Scheme: "https"}
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
	case !ok2 || h.Name == "" || !isToken(h.Name):
		return fail("no header is named")
	case slices.Contains(unsettable, h.Name):
		return fail("the header %s cannot be set", h.Name)
	case len(h.Value) < MinHeaderValue:
		return fail("its value has less than %d characters, and could not be masked", MinHeaderValue)
	case len(h.Value) > MaxHeaderValue:
		return fail("its value has more than %d bytes", MaxHeaderValue)
	case strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return fail("its value holds a control character")
	}
	return h, nil
}

// isToken tells whether s can be a header's name (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

// Label names the header without its value, as "https://api.example.com=Authorization".
func (h SecretHeader) Label() string {
	where := h.Scheme + "://" + h.Host
	if h.Port != 0 {
		where += fmt.Sprintf(":%d", h.Port)
	}
	return where + "=" + h.Name
}

// Values are the texts to be masked wherever they turn up: the header's value, and of
// one like "Bearer TOKEN" (RFC 9110, section 11.6.2) also the TOKEN.
func (h SecretHeader) Values() []string {
	values := []string{h.Value}
	if scheme, token, ok := strings.Cut(h.Value, " "); ok && isToken(scheme) && len(strings.TrimSpace(token)) >= MinHeaderValue {
		values = append(values, strings.TrimSpace(token))
	}
	return values
}

// String implements fmt.Stringer without the value, also for those who print the struct.
func (h SecretHeader) String() string { return h.Label() }

// GoString is String for %#v.
func (h SecretHeader) GoString() string { return h.Label() }

// secretHeaders are those of one sandbox.
type secretHeaders []SecretHeader

// of returns those for requests to a host. scheme "" stands for both.
func (all secretHeaders) of(scheme, host string, to netip.AddrPort) secretHeaders {
	var found secretHeaders
	for _, h := range all {
		if (scheme == "" || h.Scheme == scheme) && h.Host == host && (h.Port == 0 || h.Port == to.Port()) {
			found = append(found, h)
		}
	}
	return found
}

// set puts the headers into a request, in the place of any that the guest has set.
func (all secretHeaders) set(to http.Header) {
	for i, h := range all {
		if !slices.ContainsFunc(all[:i], func(o SecretHeader) bool { return o.Name == h.Name }) {
			to.Del(h.Name)
		}
		to.Add(h.Name, h.Value)
	}
	if len(all) > 0 {
		to.Set("Accept-Encoding", "identity") // an echo that is compressed could not be masked
	}
}

// needles are the values to be masked, the longest first.
func (all secretHeaders) needles() [][]byte {
	var needles [][]byte
	for _, h := range all {
		for _, v := range h.Values() {
			needles = append(needles, []byte(v))
		}
	}
	slices.SortStableFunc(needles, func(a, b []byte) int { return len(b) - len(a) })
	return needles
}

// maskHeader masks values in a response's headers.
func maskHeader(h http.Header, needles [][]byte) {
	for name, values := range h {
		for i, v := range values {
			b := []byte(v)
			if blot(b, needles) {
				h[name][i] = string(b)
			}
		}
	}
}

// blot replaces each needle in b by as many asterisks, so that lengths stay.
func blot(b []byte, needles [][]byte) (found bool) {
	for _, n := range needles {
		for at := 0; ; {
			i := bytes.Index(b[at:], n)
			if i < 0 {
				break
			}
			for k := range n {
				b[at+i+k] = '*'
			}
			at, found = at+i+len(n), true
		}
	}
	return found
}

// A maskReader blots needles out of what it reads. It holds back what may be the
// beginning of one. It is used by one goroutine at a time.
type maskReader struct {
	in      io.ReadCloser
	needles [][]byte
	buf     []byte // read, and not given out
	ready   int    // bytes of buf that are looked through
	err     error
}

func newMaskReader(in io.ReadCloser, needles [][]byte) io.ReadCloser {
	if len(needles) == 0 {
		return in
	}
	return &maskReader{in: in, needles: needles}
}

// Read implements io.Reader.
func (m *maskReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for m.ready == 0 && m.err == nil {
		chunk := make([]byte, 32<<10)
		n, err := m.in.Read(chunk)
		m.buf = append(m.buf, chunk[:n]...)
		m.err = err
		m.ready = len(m.buf)
		if err == nil {
			m.ready = m.whole(m.ready - m.beginning())
		}
		blot(m.buf[:m.ready], m.needles)
	}
	if m.ready == 0 {
		return 0, m.err
	}
	n := copy(p, m.buf[:m.ready])
	m.buf, m.ready = m.buf[n:], m.ready-n
	return n, nil
}

// whole returns how much of buf can be given out when nothing behind ready can: not a part
// of a needle that goes beyond it.
func (m *maskReader) whole(ready int) int {
	for moved := true; moved; {
		moved = false
		for _, n := range m.needles {
			from := max(0, ready-len(n)+1)
			if i := bytes.Index(m.buf[from:min(len(m.buf), ready+len(n)-1)], n); i >= 0 && from+i < ready {
				ready, moved = from+i, true
			}
		}
	}
	return ready
}

// beginning is the length of the longest end of buf that a needle begins with.
func (m *maskReader) beginning() int {
	best := 0
	for _, n := range m.needles {
		for k := min(len(n)-1, len(m.buf)); k > best; k-- {
			if bytes.HasPrefix(n, m.buf[len(m.buf)-k:]) {
				best = k
				break
			}
		}
	}
	return best
}

// Close implements io.Closer.
func (m *maskReader) Close() error { return m.in.Close() }
