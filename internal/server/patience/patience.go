// Package patience bounds how long a server waits for a caller that neither sends nor reads, without a
// bound for how long an answer may take.
package patience

import (
	"io"
	"net/http"
	"time"
)

// Handler returns next with a bound for how long a caller may send nothing of a body, and read nothing
// of an answer.
func Handler(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &patient{w, http.NewResponseController(w), stall}
		_ = p.ctl.SetReadDeadline(time.Time{})
		_ = p.ctl.SetWriteDeadline(time.Time{})
		if r.Body != nil && r.Body != http.NoBody {
			r = r.WithContext(r.Context()) // the server looks at its own request's body after the answer
			r.Body = &awaited{r.Body, p.ctl, stall}
		}
		next.ServeHTTP(p, r)
		_ = p.ctl.SetWriteDeadline(time.Now().Add(stall)) // for what net/http writes after this
	})
}

// patient is a http.ResponseWriter with a deadline for each write.
type patient struct {
	http.ResponseWriter
	ctl   *http.ResponseController
	stall time.Duration
}

// Unwrap is for http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patient) Write(b []byte) (int, error) {
	_ = p.ctl.SetWriteDeadline(time.Now().Add(p.stall))
	defer func() { _ = p.ctl.SetWriteDeadline(time.Time{}) }()
	return p.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, which package connect asks for.
func (p *patient) Flush() {
	_ = p.ctl.SetWriteDeadline(time.Now().Add(p.stall))
	defer func() { _ = p.ctl.SetWriteDeadline(time.Time{}) }()
	_ = p.ctl.Flush() // a caller that is gone is noticed by its context
}

// awaited is a body with a deadline for each read.
type awaited struct {
	io.ReadCloser
	ctl   *http.ResponseController
	stall time.Duration
}

func (a *awaited) Read(b []byte) (int, error) {
	_ = a.ctl.SetReadDeadline(time.Now().Add(a.stall))
	defer func() { _ = a.ctl.SetReadDeadline(time.Time{}) }()
	return a.ReadCloser.Read(b)
}
