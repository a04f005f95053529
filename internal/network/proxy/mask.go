package proxy

import (
	"bytes"
	"io"
	"net/http"
	"net/netip"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// secretHeaders are the secret headers of a sandbox.
type secretHeaders []turnstone.SecretHeader

// of returns the headers for requests to a host. scheme "" stands for both.
func (all secretHeaders) of(scheme, host string, to netip.AddrPort) secretHeaders {
	var found secretHeaders
	for _, h := range all {
		if (scheme == "" || h.Scheme == scheme) && h.Host == host &&
			(h.Port == 0 || h.Port == to.Port()) {
			found = append(found, h)
		}
	}
	return found
}

// set adds the headers to a request, and replaces headers that the guest has set.
func (all secretHeaders) set(to http.Header) {
	for i, h := range all {
		if !slices.ContainsFunc(all[:i],
			func(o turnstone.SecretHeader) bool { return o.Name == h.Name }) {
			to.Del(h.Name)
		}
		to.Add(h.Name, h.Value)
	}
	if len(all) > 0 {
		to.Set("Accept-Encoding", "identity") // a compressed echo could not be masked
	}
}

// needles returns the values to be masked, the longest first.
func (all secretHeaders) needles() [][]byte {
	var needles [][]byte
	for _, h := range all {
		for _, v := range network.HeaderTexts(h) {
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

// blot replaces each needle in b by asterisks of the same length.
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

// A maskReader masks needles in its input. It holds back bytes that may begin a needle. Only one
// goroutine at a time may use it.
type maskReader struct {
	in      io.ReadCloser
	needles [][]byte
	buf     []byte // read, and not yet returned
	ready   int    // bytes of buf that were searched
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

// whole returns how many bytes of buf can be returned if none after ready can: a needle that
// continues after ready is not split.
func (m *maskReader) whole(ready int) int {
	for moved := true; moved; {
		moved = false
		for _, n := range m.needles {
			from := max(0, ready-len(n)+1)
			if i := bytes.Index(m.buf[from:min(len(m.buf), ready+len(n)-1)], n); i >= 0 &&
				from+i < ready {
				ready, moved = from+i, true
			}
		}
	}
	return ready
}

// beginning returns the length of the longest suffix of buf that begins a needle.
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
