package gateway

import (
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	"turnstone.dev/turnstone/internal/server/auth"
)

// Bounds of what a refused request may still send, so that its connection can be used again.
const (
	leftover     = 64 << 10
	leftoverTime = time.Second
)

// A refuser answers requests that the gateway does not pass on, in the caller's protocol.
type refuser struct {
	realm  string
	writer *connect.ErrorWriter
}

func newRefuser(name string) *refuser {
	realm := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name)
	return &refuser{realm: realm, writer: connect.NewErrorWriter(serve.HandlerOptions(nil)...)}
}

// refuse answers err. The request's body is not read.
func (f *refuser) refuse(w http.ResponseWriter, r *http.Request, err error) {
	h := w.Header()
	if r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody {
		// net/http reads the rest of a small body, which may not come.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftoverTime))
		if r.ContentLength < 0 || r.ContentLength > leftover {
			h.Set("Connection", "close")
		}
	}
	e := api.ToConnect(err)
	if wait := e.Meta().Get("Retry-After"); wait != "" {
		e.Meta().Del("Retry-After")
		h.Set("Retry-After", wait)
	}
	if c := f.challenge(err); c != "" {
		h.Set("WWW-Authenticate", c)
	}
	_ = f.writer.Write(w, r, e) // the caller has gone
}

// challenge returns WWW-Authenticate for a refused token (RFC 6750, 3), or "".
func (f *refuser) challenge(err error) string {
	reason := auth.ReasonOf(err)
	c := `Bearer realm="` + f.realm + `"`
	switch {
	case reason == auth.Missing:
		return c
	case reason == auth.Denied:
		return c + `, error="insufficient_scope"`
	case reason.Unauthenticated():
		return c + `, error="invalid_token", error_description="` + string(reason) + `"`
	}
	return ""
}

// withStatus replaces the status of an answer.
type withStatus struct {
	http.ResponseWriter
	status int
}

func (w withStatus) WriteHeader(int)             { w.ResponseWriter.WriteHeader(w.status) }
func (w withStatus) Unwrap() http.ResponseWriter { return w.ResponseWriter }
