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

// translated is an interceptor that translates errors.
type translated struct{}

// WrapUnary implements connect.Interceptor.
func (translated) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		a, err := next(ctx, r)
		return a, toConnect(err)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (translated) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (translated) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		return toConnect(next(ctx, c))
	}
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
		err = toConnect(err)
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
