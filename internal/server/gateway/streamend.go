package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/api"
)

// An answer is the body of a controller's answer that is a stream. If it breaks, the caller gets
// the end of a stream with an error, in its protocol, rather than a broken connection.
type answer struct {
	io.ReadCloser
	response *http.Response
	form     form
	explain  func(error) error // what the caller is told of a failed read
	writer   *connect.ErrorWriter

	place place
	rest  []byte // of the end; nil: the stream is not broken
	ended bool
}

// A form is how a protocol ends a stream.
type form int

const (
	noForm    form = iota
	enveloped      // Connect: a last message
	webbed         // gRPC-Web: a last frame with trailers
	trailed        // gRPC: trailers
)

func formOf(h http.Header) form {
	t := h.Get("Content-Type")
	switch {
	case strings.HasPrefix(t, "application/connect+"):
		return enveloped
	case strings.HasPrefix(t, "application/grpc-web"):
		return webbed
	case strings.HasPrefix(t, "application/grpc"):
		return trailed
	}
	return noForm
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	if a.ended {
		n := copy(p, a.rest)
		if a.rest = a.rest[n:]; len(a.rest) == 0 {
			return n, io.EOF
		}
		return n, nil
	}
	n, err := a.ReadCloser.Read(p)
	a.place.pass(p[:n])
	if err == nil || errors.Is(err, io.EOF) || a.place.within() && a.form != trailed {
		return n, err // within a message, nothing else can follow
	}
	a.end(a.explain(err))
	return n, nil
}

// end makes the end of a stream.
func (a *answer) end(err error) {
	a.ended = true
	kind := a.response.Header.Get("Content-Type")
	request := &http.Request{Method: http.MethodPost, Header: http.Header{"Content-Type": {kind}}}
	w := &record{h: http.Header{}}
	_ = a.writer.Write(w, request, api.ToConnect(err)) // it does not fail
	var trailers bytes.Buffer
	names := make([]string, 0, len(w.h))
	for k := range w.h {
		if strings.HasPrefix(k, "Grpc-") || k == "Retry-After" {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	for _, k := range names {
		trailers.WriteString(strings.ToLower(k) + ": " + w.h.Get(k) + "\r\n")
		if a.form == trailed {
			if a.response.Trailer == nil {
				a.response.Trailer = http.Header{}
			}
			a.response.Trailer[k] = w.h[k]
		}
	}
	switch a.form {
	case enveloped:
		a.rest = w.b.Bytes()
	case webbed:
		const isTrailer = 0x80
		a.rest = binary.BigEndian.AppendUint32([]byte{isTrailer}, uint32(trailers.Len()))
		a.rest = append(a.rest, trailers.Bytes()...)
	}
}

// A place is where a stream of messages is: each has a byte of flags, its length in four bytes and
// itself.
type place struct {
	head [5]byte
	have int    // bytes of head
	left uint32 // bytes of the message
}

func (p *place) pass(b []byte) {
	for len(b) > 0 {
		if p.have < len(p.head) {
			n := copy(p.head[p.have:], b)
			p.have, b = p.have+n, b[n:]
			if p.have < len(p.head) {
				return
			}
			p.left = binary.BigEndian.Uint32(p.head[1:])
		}
		n := min(uint64(p.left), uint64(len(b)))
		p.left, b = p.left-uint32(n), b[n:]
		if p.left == 0 {
			p.have = 0
		}
	}
}

// within reports whether a message is unfinished.
func (p *place) within() bool { return p.have > 0 }

// A record keeps what is written to a caller.
type record struct {
	h http.Header
	b bytes.Buffer
}

func (r *record) Header() http.Header         { return r.h }
func (r *record) WriteHeader(int)             {}
func (r *record) Write(p []byte) (int, error) { return r.b.Write(p) }
