package ui

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"turnstone.dev/turnstone"
)

// get answers requests that change nothing.
func get[Out any](s *Server, f func(ctx context.Context, q url.Values) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			answer(w, nil, turnstone.NewError("ui.call", turnstone.KindInvalid, "the query", err))
			return
		}
		if !s.enter(r.Context()) {
			return
		}
		defer s.leave()
		out, err := f(r.Context(), q)
		answer(w, out, err)
	})
}

// post answers requests with a JSON body, which a form of another page cannot send.
func post[In, Out any](s *Server, f func(ctx context.Context, in In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || kind != "application/json" {
			answer(w, nil, invalid("the request", "is not JSON"))
			return
		}
		var in In
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		dec.DisallowUnknownFields()
		if err = dec.Decode(&in); err == nil {
			if _, end := dec.Token(); !errors.Is(end, io.EOF) {
				err = errors.New("more than one value")
			}
		}
		if err != nil {
			answer(w, nil, turnstone.NewError("ui.call", turnstone.KindInvalid, "the request", err))
			return
		}
		if !s.enter(r.Context()) {
			return
		}
		defer s.leave()
		out, err := f(r.Context(), in)
		answer(w, out, err)
	})
}

// enter waits until few requests work. It returns false if the client has gone.
func (s *Server) enter(ctx context.Context) bool {
	select {
	case s.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) leave() { <-s.slots }

func invalid(what, format string, args ...any) error {
	return turnstone.Errorf("ui.call", turnstone.KindInvalid, what, format, args...)
}

// A failure is an error as the page shows it.
type failure struct {
	Error string         `json:"error"`
	Kind  turnstone.Kind `json:"kind,omitempty"`
	Hint  string         `json:"hint,omitempty"`
}

func failureOf(err error) *failure {
	return &failure{cut(err.Error(), maxText), turnstone.KindOf(err),
		cut(turnstone.HintOf(err), maxText)}
}

// answer sends the result of a call.
func answer(w http.ResponseWriter, out any, err error) {
	status := http.StatusOK
	if err != nil {
		out = failureOf(err)
		switch turnstone.KindOf(err) {
		case turnstone.KindInvalid:
			status = http.StatusBadRequest
		case turnstone.KindNotFound:
			status = http.StatusNotFound
		case turnstone.KindDenied:
			status = http.StatusForbidden
		default:
			status = http.StatusInternalServerError
		}
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			status = http.StatusRequestEntityTooLarge
		}
	}
	b, err := json.Marshal(out)
	if err != nil {
		http.Error(w, "the result is not JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that is gone
}

// Bounds of what requests name, in bytes.
const (
	maxRef  = 300
	maxPath = 4095 // as Linux has it
	maxText = 4 << 10
)

// checkRef rejects what names no session and no turn. A reference that begins with a dash or an @ is
// short for one in the session that commands used last, which the page does not use.
func checkRef(what, ref string) error {
	if ref == "" || len(ref) > maxRef || ref[0] == '-' || ref[0] == '@' ||
		strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r == 0x7f || r == 0xFFFD }) {
		return invalid(what, "%q is no reference", cut(ref, maxRef))
	}
	return nil
}

// checkPath rejects what is no absolute path of a file in a state.
func checkPath(path string) error {
	if !strings.HasPrefix(path, "/") || len(path) > maxPath || strings.ContainsRune(path, 0) {
		return invalid("path", "%q is no absolute path", cut(path, maxRef))
	}
	return nil
}

// cut returns at most n bytes of s, as text.
func cut(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
