package e2b

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/e2b/envd"
	"turnstone.dev/turnstone/internal/server/auth"
)

// apiHeader has the caller's token; keyPrefix may be before it, because E2B's keys have one.
const (
	apiHeader = "X-Api-Key"
	keyPrefix = "e2b_"
)

// Bounds of requests to the REST API.
const (
	maxToken = 16 << 10
	maxBody  = 256 << 10
)

// A handle answers one request of the REST API, in the name of the principal of its context.
type handle func(d *Door, w http.ResponseWriter, r *http.Request) error

// rest returns the handler of the REST API.
func (d *Door) rest() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handle{
		"POST /sandboxes":                 (*Door).create,
		"POST /v2/sandboxes":              (*Door).create,
		"GET /sandboxes":                  (*Door).listRunning,
		"GET /v2/sandboxes":               (*Door).list,
		"GET /sandboxes/{id}":             (*Door).get,
		"DELETE /sandboxes/{id}":          (*Door).kill,
		"POST /sandboxes/{id}/timeout":    (*Door).setTimeout,
		"POST /sandboxes/{id}/refreshes":  (*Door).refresh,
		"POST /sandboxes/{id}/pause":      (*Door).pause,
		"POST /sandboxes/{id}/resume":     (*Door).resume,
		"POST /sandboxes/{id}/connect":    (*Door).connect,
		"POST /v2/sandboxes/{id}/connect": (*Door).connect,
		"POST /sandboxes/{id}/fork":       (*Door).fork,
		"POST /sandboxes/{id}/snapshots":  (*Door).snapshot,
		"GET /sandboxes/{id}/metrics":     (*Door).metrics,
		"GET /snapshots":                  (*Door).listSnapshots,
		"DELETE /templates/{id}":          (*Door).deleteSnapshot,
	} {
		mux.HandleFunc(pattern, d.guarded(h))
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	})
	mux.HandleFunc("/", d.guarded(func(_ *Door, _ http.ResponseWriter, r *http.Request) error {
		return &statusError{http.StatusNotImplemented, "this server has no " + r.Method + " " + r.URL.Path +
			": docs/e2b.md lists what there is"}
	}))
	return mux
}

// A statusError is an error with a status of HTTP.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func bad(text string) error { return &statusError{http.StatusBadRequest, text} }

// guarded authenticates the caller before anything is read of the body.
func (d *Door) guarded(h handle) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if d.o.Arrive != nil {
			if err := d.o.Arrive(r); err != nil {
				d.refuse(w, err)
				return
			}
		}
		p, err := d.caller(r)
		if err != nil {
			d.refuse(w, err)
			return
		}
		ctx, done, err := d.o.Begin(auth.NewContext(r.Context(), p), p)
		if err != nil {
			d.refuse(w, err)
			return
		}
		defer done()
		if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
			ctx = context.WithValue(ctx, callerKey{}, host)
		}
		if err := h(d, w, r.WithContext(ctx)); err != nil && r.Context().Err() == nil {
			d.refuse(w, err)
		}
	}
}

// caller returns the principal of a request's token.
func (d *Door) caller(r *http.Request) (auth.Principal, error) {
	all := r.Header.Values(apiHeader)
	if len(all) != 1 || all[0] == "" || len(all[0]) > maxToken {
		return auth.Principal{}, &statusError{http.StatusUnauthorized,
			"the request has no token of this server in X-API-Key: set E2B_API_KEY to one of turn token create"}
	}
	return d.o.Verifier.Verify(r.Context(), tokenOf(all[0]))
}

// tokenOf returns the token of an API key: itself, also after E2B's prefix, or the text of its hexadecimal digits, which
// clients from 2.25 to 2.45 want. No token consists of such digits alone.
func tokenOf(key string) string {
	rest, found := strings.CutPrefix(key, keyPrefix)
	if text, err := hex.DecodeString(rest); found && err == nil && len(text) > 0 {
		return string(text)
	}
	return rest
}

// refuse answers an error. A fault of the server has no text: its log has one.
func (d *Door) refuse(w http.ResponseWriter, err error) {
	var s *statusError
	if errors.As(err, &s) {
		envd.Refuse(w, s.status, s.text)
		return
	}
	status := http.StatusInternalServerError
	reason := auth.ReasonOf(err)
	var known *api.Status
	if errors.As(err, &known) && known.Code == connect.CodeUnauthenticated {
		status = http.StatusUnauthorized
	}
	switch {
	case status == http.StatusUnauthorized || reason.Unauthenticated():
		status = http.StatusUnauthorized
	case reason == auth.Denied:
		status = http.StatusForbidden
	default:
		if of, ok := statuses[turnstone.KindOf(err)]; ok {
			status = of
		}
	}
	if wait := api.RetryAfter(err); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	if status == http.StatusInternalServerError {
		d.o.Log.Error("a request at E2B's door failed", "error", err)
		envd.Refuse(w, status, "a fault of the server, whose log has the reason")
		return
	}
	envd.Refuse(w, status, message(err))
}

var statuses = map[turnstone.Kind]int{
	turnstone.KindInvalid:     http.StatusBadRequest,
	turnstone.KindNotFound:    http.StatusNotFound,
	turnstone.KindUnavailable: http.StatusServiceUnavailable,
	turnstone.KindExhausted:   http.StatusTooManyRequests,
	turnstone.KindCanceled:    499,
	turnstone.KindTimeout:     http.StatusGatewayTimeout,
	turnstone.KindDead:        http.StatusNotFound,
	turnstone.KindDenied:      http.StatusForbidden,
	turnstone.KindIntegrity:   http.StatusConflict,
}

// message returns what a caller reads of an error.
func message(err error) string {
	text := err.Error()
	var e *turnstone.Error
	if errors.As(err, &e) && e.Err != nil {
		text = strings.TrimSpace(e.Subject + " " + e.Err.Error())
	}
	if hint := turnstone.HintOf(err); hint != "" {
		text += "; " + hint
	}
	return text
}

// body decodes the JSON of a request. No body is as an empty object. An unknown field is an error:
// what a caller asks for and does not get would be worse.
func body(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &statusError{http.StatusRequestEntityTooLarge, "the body has more than " +
			strconv.Itoa(maxBody) + " bytes"}
	case err != nil:
		return bad("the body is cut off")
	}
	return decode(b, v)
}

func decode(b []byte, v any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return bad("the body is not what this server knows: " + err.Error())
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("the body has more than one value")
	}
	return nil
}

func answer(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return turnstone.NewError("e2b.answer", turnstone.KindInternal, "", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
	return nil
}

// own returns a sandbox of the caller that was made at the door, and has not ended.
func (d *Door) own(r *http.Request) (*v1.Sandbox, Found, error) {
	id := r.PathValue("id")
	gone := &statusError{http.StatusNotFound, "sandbox " + clip(id) + " not found"}
	if !sandboxForm.MatchString(id) {
		return nil, Found{}, gone
	}
	a, err := d.sandboxes.GetSandbox(r.Context(), connect.NewRequest(&v1.GetSandboxRequest{SandboxId: id}))
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, Found{}, gone
	}
	if err != nil {
		return nil, Found{}, err
	}
	s := a.Msg.Sandbox
	f, err := d.find(turnstone.SandboxID(id))
	if s.GetRemoved() || ended(s) || turnstone.KindOf(err) == turnstone.KindNotFound ||
		err == nil && f.Info.State.Final() {
		return nil, Found{}, gone
	}
	return s, f, err
}

// ended reports whether a sandbox has no machine any more.
func ended(s *v1.Sandbox) bool {
	return s.GetState() == v1.SandboxState_SANDBOX_STATE_STOPPED ||
		s.GetState() == v1.SandboxState_SANDBOX_STATE_FAILED
}

func clip(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
