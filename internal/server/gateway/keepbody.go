package gateway

import (
	"io"
	"net/http"
)

// A bodyKeeper sends requests to the controller whose bodies stay open. If a connection turns out to
// be unusable, net/http's HTTP/2 takes another one for the same request, and closes the body for the
// first one at any time: before the second reads it, or while it does. A call was then lost with
// http.ErrBodyReadAfterClose. The server of a request closes its body when the handler returns, which
// also ends a read that is left.
type bodyKeeper struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t bodyKeeper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return t.RoundTripper.RoundTrip(r)
	}
	one := r.WithContext(r.Context())
	one.Body = io.NopCloser(r.Body)
	return t.RoundTripper.RoundTrip(one)
}
