package gateway

import (
	"errors"
	"io"
	"net/http"
)

// A bodyKeeper sends requests to the controller whose bodies do not fail because something closed
// them. A call or its answer was then lost with http.ErrBodyReadAfterClose:
//   - If a connection turns out to be unusable, net/http's HTTP/2 takes another one for the same
//     request, after it has closed the body for the first one.
//   - Servers close a request's body when the handler returns, and the transport may still read it: the
//     controller may refuse a call before the transport has read the body to its end.
type bodyKeeper struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t bodyKeeper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return t.RoundTripper.RoundTrip(r)
	}
	one := r.WithContext(r.Context())
	one.Body = keptBody{r.Body}
	return t.RoundTripper.RoundTrip(one)
}

// A keptBody is the body of a request that this process serves. Its server closes it when the handler
// returns; whoever answers first wants no more of it, so that is its end.
type keptBody struct{ r io.Reader }

// Read implements io.Reader.
func (b keptBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, http.ErrBodyReadAfterClose) {
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer without effect.
func (keptBody) Close() error { return nil }
