package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/trail"
)

// shorten returns the name of a procedure without its package: SandboxService/CreateSandbox.
func shorten(procedure string) string {
	name := strings.TrimPrefix(procedure, "/")
	service, _, _ := strings.Cut(name, "/")
	return name[strings.LastIndexByte(service, '.')+1:]
}

// Calls returns an interceptor for the handlers of a role that only other roles reach, or a gateway's
// callers: it continues the trail that they were sent with, and measures calls.
func (t *Telemetry) Calls(role string) connect.Interceptor { return callInterceptor{t, role} }

// Onward returns an interceptor for calls of other roles: it sends the trail on.
func (t *Telemetry) Onward() connect.Interceptor { return onward{} }

type callInterceptor struct {
	*Telemetry
	role string
}

// errPanic stands for the panic of a handler, which continues.
var errPanic = errors.New("panic")

// WrapUnary implements connect.Interceptor.
func (t callInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (answer connect.AnyResponse, err error) {
		began, name := time.Now(), shorten(r.Spec().Procedure)
		ctx, span := trail.Extract(ctx, r.Header()), trace.Span(noop.Span{})
		if t.tracing {
			ctx, span = t.tracer.Start(ctx, t.role+" "+name, trace.WithSpanKind(trace.SpanKindServer))
		}
		err = errPanic
		defer func() { t.ended(ctx, span, name, answer, err, time.Since(began)) }()
		answer, err = next(ctx, r)
		return answer, err
	}
}

func (t callInterceptor) ended(ctx context.Context, span trace.Span, name string,
	answer connect.AnyResponse, err error, took time.Duration) {
	code := codeOf(err)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("rpc.connect.code", code))
		if err != nil {
			span.SetStatus(codes.Error, "") // its text may quote the caller
		} else if answer != nil {
			span.SetAttributes(objects(answer.Any())...)
			t.phases(ctx, answer.Any(), took)
		}
	}
	span.End()
	if t.meters != nil {
		t.meters.add(calls, 1, t.role, name, code)
		t.meters.took(callSeconds, took, t.role, name)
	}
	t.log.LogAttrs(ctx, slog.LevelDebug, "call", slog.String("role", t.role),
		slog.String("method", name), slog.String("code", code), slog.Duration("time", took))
}

// phases makes a span of each phase that a node's answer names, of a call that took a time.
func (t callInterceptor) phases(ctx context.Context, answer any, took time.Duration) {
	a, ok := answer.(interface{ GetPhases() []*v1.Phase })
	if !ok || t.role != config.Node {
		return
	}
	began := time.Now().Add(-took)
	for _, p := range a.GetPhases() {
		at := began.Add(p.GetAfter().AsDuration())
		_, span := t.tracer.Start(ctx, "node phase "+p.GetName(), trace.WithTimestamp(at))
		span.End(trace.WithTimestamp(at.Add(p.GetTook().AsDuration())))
	}
}

// objects returns the IDs of a created sandbox or turn, which the server has chosen.
func objects(answer any) (all []attribute.KeyValue) {
	if a, ok := answer.(interface{ GetSandbox() *v1.Sandbox }); ok && a.GetSandbox() != nil {
		all = append(all, attribute.String("turnstone.sandbox", a.GetSandbox().GetSandboxId()),
			attribute.String("turnstone.node", a.GetSandbox().GetNode()))
	}
	if a, ok := answer.(interface{ GetTurn() *v1.Turn }); ok && a.GetTurn() != nil {
		all = append(all, attribute.String("turnstone.ticket", a.GetTurn().GetTicketId()),
			attribute.String("turnstone.node", a.GetTurn().GetNode()))
	}
	return all
}

// codeOf returns the code of an error of a handler; ok: there is none.
func codeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errPanic):
		return connect.CodeInternal.String()
	}
	return api.CodeOf(err).String()
}

// WrapStreamingClient implements connect.Interceptor.
func (t callInterceptor) WrapStreamingClient(
	next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. A stream lasts for hours: it has no span.
func (t callInterceptor) WrapStreamingHandler(
	next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		name := shorten(conn.Spec().Procedure)
		ctx = trail.Extract(ctx, conn.RequestHeader())
		t.meters.add(streams, 1, t.role, name)
		err = errPanic
		defer func() {
			t.meters.add(streams, -1, t.role, name)
			t.meters.add(calls, 1, t.role, name, codeOf(err))
			t.log.LogAttrs(ctx, slog.LevelDebug, "stream ended", slog.String("role", t.role),
				slog.String("method", name), slog.String("code", codeOf(err)))
		}()
		err = next(ctx, conn)
		return err
	}
}

// onward sends the trail of a call's context on.
type onward struct{}

// WrapUnary implements connect.Interceptor.
func (onward) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		trail.Inject(ctx, r.Header())
		return next(ctx, r)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (onward) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, s connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, s)
		trail.Inject(ctx, conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (onward) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
