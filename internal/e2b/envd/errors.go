package envd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
)

// codes are the codes by which E2B's clients choose the class of an exception.
var codes = map[turnstone.Kind]connect.Code{
	turnstone.KindInvalid:     connect.CodeInvalidArgument,
	turnstone.KindNotFound:    connect.CodeNotFound,
	turnstone.KindUnavailable: connect.CodeUnavailable,
	turnstone.KindExhausted:   connect.CodeResourceExhausted,
	turnstone.KindCanceled:    connect.CodeCanceled,
	turnstone.KindTimeout:     connect.CodeDeadlineExceeded,
	turnstone.KindDead:        connect.CodeUnavailable,
	turnstone.KindDenied:      connect.CodePermissionDenied,
}

// toConnect returns an error for clients of Connect. A fault of the node has no text.
func toConnect(err error) error {
	var already *connect.Error
	if err == nil || errors.As(err, &already) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the time of the call is up"))
	}
	if errors.Is(err, context.Canceled) {
		return connect.NewError(connect.CodeCanceled, errors.New("the call was cancelled"))
	}
	kind := turnstone.KindOf(err)
	code, known := codes[kind]
	if !known {
		slog.Error("a call of E2B's door failed", "error", err)
		return connect.NewError(connect.CodeInternal, errors.New("a fault of the node, whose log has the reason"))
	}
	return connect.NewError(code, errors.New(text(err)))
}

// text returns what a caller reads of an error: its subject and its cause.
func text(err error) string {
	var e *turnstone.Error
	if !errors.As(err, &e) || e.Err == nil {
		return clip(err.Error())
	}
	if e.Subject == "" {
		return clip(e.Err.Error())
	}
	return clip(e.Subject + ": " + e.Err.Error())
}

func fail(code connect.Code, text string) error {
	return connect.NewError(code, errors.New(clip(text)))
}

// NotFound is the text by which clients know that a sandbox is gone.
func NotFound(id turnstone.SandboxID) string { return "The sandbox " + string(id) + " was not found" }

// told returns an error for the caller of ctx, and whether it is that of a sandbox that is gone.
func told(ctx context.Context, err error) (_ error, gone bool) {
	if kind := kindOf(err); kind == turnstone.KindDead || kind == turnstone.KindUnavailable {
		if b, none := box(ctx); none == nil && b.Gone != nil && b.Gone(ctx) {
			return fail(connect.CodeUnavailable, NotFound(b.ID)), true
		}
	}
	return toConnect(err), false
}

// translated is an interceptor that translates errors.
type translated struct{}

// WrapUnary implements connect.Interceptor.
func (translated) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		a, err := next(ctx, r)
		err, _ = told(ctx, err)
		return a, err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (translated) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. An answer that has begun is cut off if the
// sandbox is gone, as E2B does: clients look then whether the sandbox runs, and say that it was killed.
func (translated) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		s := &sending{StreamingHandlerConn: c}
		err, gone := told(ctx, next(ctx, s))
		if gone && s.began {
			panic(http.ErrAbortHandler)
		}
		return err
	}
}

// A sending knows whether something was sent.
type sending struct {
	connect.StreamingHandlerConn
	began bool
}

// Send implements connect.StreamingHandlerConn.
func (s *sending) Send(m any) error {
	s.began = true
	return s.StreamingHandlerConn.Send(m)
}

// statuses are the statuses of codes for plain HTTP.
var statuses = map[connect.Code]int{
	connect.CodeInvalidArgument:   http.StatusBadRequest,
	connect.CodeNotFound:          http.StatusNotFound,
	connect.CodeUnavailable:       http.StatusBadGateway,
	connect.CodeResourceExhausted: http.StatusInsufficientStorage,
	connect.CodeCanceled:          499,
	connect.CodeDeadlineExceeded:  http.StatusGatewayTimeout,
	connect.CodePermissionDenied:  http.StatusForbidden,
	connect.CodeUnauthenticated:   http.StatusUnauthorized,
}

// plain returns the handler of a request of plain HTTP.
func plain(f func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := f(w, r)
		if err == nil {
			return
		}
		err, _ = told(r.Context(), err)
		status, known := statuses[connect.CodeOf(err)]
		if !known {
			status = http.StatusInternalServerError
		}
		var e *connect.Error
		_ = errors.As(err, &e)
		Refuse(w, status, e.Message())
	}
}

// Refuse answers an error as E2B's daemon and API do.
func Refuse(w http.ResponseWriter, status int, text string) {
	answer(w, status, map[string]any{"code": status, "message": clip(text)})
}

func answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"code":500,"message":""}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
}
