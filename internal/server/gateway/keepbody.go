package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// A bodyKeeper sends requests to the controller whose bodies do not fail because something closed
// them. A call or its answer was then lost with http.ErrBodyReadAfterClose:
//   - If a connection turns out to be unusable, net/http's HTTP/2 takes another one for the same
//     request, after it has closed the body for the first one.
//   - Servers close a request's body when the handler returns, and the transport may still read it: the
//     controller may refuse a call before the transport has read the body to its end.
//
// The body ends when the answer is closed. A client of HTTP/2 that is refused early sends no more of its
// body and waits for the answer's end, while the transport waits in the close of the answer for the rest
// of the body.
type bodyKeeper struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t bodyKeeper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return t.RoundTripper.RoundTrip(r)
	}
	out, in := io.Pipe()
	one := r.WithContext(r.Context())
	one.Body = keptBody{out, sync.OnceFunc(func() {
		go func() { // a read that is not wanted any more ends with the request, whose server closes the body
			_, err := io.Copy(in, r.Body)
			_ = in.CloseWithError(err)
		}()
	})}
	res, err := t.RoundTripper.RoundTrip(one)
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &lastBody{res.Body, out}
	}
	return res, nil
}

// A keptBody is the body of a request that this process serves. Its server closes it when the handler
// returns; whoever answers first wants no more of it, so that is its end.
type keptBody struct {
	r     io.Reader
	begin func() // what r reads from; it may be called again
}

// Read implements io.Reader.
func (b keptBody) Read(p []byte) (int, error) {
	b.begin()
	n, err := b.r.Read(p)
	if errors.Is(err, http.ErrBodyReadAfterClose) || errors.Is(err, io.ErrClosedPipe) {
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer without effect.
func (keptBody) Close() error { return nil }

// A lastBody is the body of an answer, whose close ends that of the request.
type lastBody struct {
	io.ReadCloser
	request *io.PipeReader
}

// Close implements io.Closer.
func (b *lastBody) Close() error {
	_ = b.request.Close()
	return b.ReadCloser.Close()
}
