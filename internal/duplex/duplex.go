// Package duplex serves HTTP/1 requests whose answers begin before their bodies have been read, as
// those of proxies do.
package duplex

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
)

// Handler returns next for answers that may begin before the end of the request's body. net/http's
// HTTP/1 server otherwise reads the rest of the body and closes it when an answer begins: a proxy,
// whose transport reads that body too, then drops the answer in its middle.
//
// After such an answer, the connection is not used again: what remains of the body must not be read
// as the next request (RFC 9112, 9.3).
//
// Of informational answers (status 100 to 199) that next's transports receive with the request's
// context, it permits a bounded number.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(patient(r.Context()))
		if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		// The error is that of a writer that is no server's.
		_ = http.NewResponseController(w).EnableFullDuplex()
		b := &body{ReadCloser: r.Body}
		r.Body = b // of r, which is no longer the server's own request: it looks at that one's body
		next.ServeHTTP(&writer{ResponseWriter: w, body: b}, r)
	})
}

// maxInformational bounds the informational answers to one request.
const maxInformational = 32

var errInformational = errors.New("the server sends informational answers, and no answer")

// patient returns a context whose requests fail after too many informational answers. The sender
// chooses their number: net/http bounds their size only where nobody asks for them, and
// httputil.ReverseProxy asks for them, to pass them on.
func patient(ctx context.Context) context.Context {
	var n atomic.Int32
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if n.Add(1) > maxInformational {
				return errInformational
			}
			return nil
		}})
}

// A body knows whether it was read to its end.
type body struct {
	io.ReadCloser
	ended atomic.Bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// A writer announces the end of the connection if the answer begins before the body has ended.
type writer struct {
	http.ResponseWriter
	body  *body
	began bool
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	if status >= http.StatusOK { // others are not the answer
		w.begin()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *writer) Flush() {
	w.begin()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the caller's end shows elsewhere
}

func (w *writer) begin() {
	if !w.began && !w.body.ended.Load() {
		w.Header().Set("Connection", "close")
	}
	w.began = true
}
