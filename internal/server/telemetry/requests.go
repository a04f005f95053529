package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/trail"
)

// methods are the labels of the procedures for callers by their paths. The others are few.
var methods = func() map[string]method {
	all := map[string]method{"/healthz": {name: "health"}, "/readyz": {name: "health"}}
	for _, file := range []protoreflect.FileDescriptor{v1.File_turnstone_v1_sandbox_proto,
		v1.File_turnstone_v1_turn_proto, v1.File_turnstone_v1_session_proto,
		v1.File_turnstone_v1_template_proto, v1.File_turnstone_v1_server_proto,
		v1.File_turnstone_v1_pool_proto} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				path := "/" + string(service.FullName()) + "/" + string(m.Name())
				all[path] = method{shorten(path), m.IsStreamingServer()}
			}
		}
	}
	return all
}()

// A method is the label of a request's method, and whether it is answered by a stream.
type method struct {
	name   string
	stream bool
}

// prefixes are the paths of channels, and of calls in the clear.
var prefixes = []struct{ path, name string }{{"/turnstone/v1/nodes/", "channel/node"},
	{"/turnstone/v1/sandboxes/", "channel/sandbox"}, {"/turnstone/v1/plain/", "plain"},
	{"/grpc.", "grpc"}}

func methodOf(path string) method {
	if m, ok := methods[path]; ok {
		return m
	}
	for _, p := range prefixes {
		if strings.HasPrefix(path, p.path) {
			return method{name: p.name}
		}
	}
	return method{name: other}
}

// Requests gives each request of a caller a trail, of which it tells the caller the ID, and measures
// requests. What a caller says of its own trace becomes a link.
func (t *Telemetry) Requests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, m := time.Now(), methodOf(r.URL.Path)
		ctx, span := t.request(r, m)
		trail.Inject(ctx, r.Header) // for the controller, which may be in another process
		w.Header().Set(trail.Header, trail.ID(ctx))
		rec := &recorder{ResponseWriter: w}
		ended := false
		defer func() {
			if !ended { // net/http takes the panic
				rec.status = http.StatusInternalServerError
			}
			t.answered(ctx, span, m, rec, time.Since(began))
		}()
		next.ServeHTTP(rec, r.WithContext(ctx))
		ended = true
	})
}

func (t *Telemetry) request(r *http.Request, m method) (context.Context, trace.Span) {
	theirs := trail.Strip(r.Header)
	if !t.tracing {
		return trail.Begin(r.Context()), noop.Span{}
	}
	o := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindServer)}
	if theirs.IsValid() {
		o = append(o, trace.WithLinks(trace.Link{SpanContext: theirs}))
	}
	ctx, span := t.tracer.Start(r.Context(), "gateway "+m.name, o...)
	return trail.Begin(ctx), span
}

func (t *Telemetry) answered(ctx context.Context, span trace.Span, m method, rec *recorder,
	took time.Duration) {
	status := strconv.Itoa(rec.code())
	if span.IsRecording() {
		span.SetAttributes(attribute.String("http.response.status_code", status))
	}
	span.End()
	if t.meters != nil {
		t.meters.add(requests, 1, m.name, status)
		if !m.stream {
			t.meters.took(requestSeconds, took, m.name)
		}
	}
	t.log.LogAttrs(ctx, slog.LevelDebug, "request", slog.String("role", "gateway"),
		slog.String("method", m.name), slog.String("status", status), slog.Duration("time", took))
}

// A recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader notes the status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write writes with the status 200 if there is none.
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// code is the status. A handler that set none has taken the connection over for a channel, or
// answered nothing.
func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusSwitchingProtocols
	}
	return r.status
}
