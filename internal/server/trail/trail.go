// Package trail gives each request of a caller an ID that connects the logs and the spans of gateway,
// controller and node. The ID is the trace ID of W3C Trace Context, which the roles pass on in the
// header traceparent, also when nothing is traced.
package trail

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Header is the header of answers that has the ID of the request.
const Header = "Turnstone-Request"

// format reads and writes the header traceparent.
var format propagation.TraceContext

// carrier has only traceparent: the other headers have texts of others.
type carrier struct{ http.Header }

const parent = "Traceparent"

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	if http.CanonicalHeaderKey(key) == parent && len(c.Values(parent)) == 1 {
		return c.Header.Get(parent)
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) {
	if http.CanonicalHeaderKey(key) == parent {
		c.Header.Set(parent, value)
	}
}

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string { return []string{parent} }

// Extract returns ctx with the trail that another role of the server has put into the headers. A
// header that is not valid is no trail.
func Extract(ctx context.Context, h http.Header) context.Context {
	return format.Extract(ctx, carrier{h})
}

// Inject sets the trail of ctx in the headers of a request to another role.
func Inject(ctx context.Context, h http.Header) { format.Inject(ctx, carrier{h}) }

// Strip removes from the headers of a caller's request all that says where the request belongs, and
// returns the caller's own span. It may be linked and is no parent: a caller chooses neither the ID
// of a request nor whether the request is traced.
func Strip(h http.Header) trace.SpanContext {
	if len(h[parent]) == 0 && len(h["Tracestate"]) == 0 && len(h["Baggage"]) == 0 {
		return trace.SpanContext{}
	}
	theirs := trace.SpanContextFromContext(Extract(context.Background(), h))
	delete(h, parent)
	delete(h, "Tracestate")
	delete(h, "Baggage")
	return theirs
}

// Begin returns ctx with a new trail, unless ctx has one.
func Begin(ctx context.Context) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	var id trace.TraceID
	var span trace.SpanID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64()|1)
	binary.NativeEndian.PutUint64(span[:], rand.Uint64()|1)
	return trace.ContextWithSpanContext(ctx,
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span}))
}

// ID returns the ID of ctx's request; empty: it has none.
func ID(ctx context.Context) string {
	if s := trace.SpanContextFromContext(ctx); s.HasTraceID() {
		return s.TraceID().String()
	}
	return ""
}

// Text returns the trail of ctx as text, as it is kept; empty: there is none.
func Text(ctx context.Context) string {
	h := http.Header{}
	Inject(ctx, h)
	return h.Get(parent)
}

// From returns ctx with the trail of a text of Text. Another text is no trail.
func From(ctx context.Context, text string) context.Context {
	return Extract(ctx, http.Header{parent: {text}})
}

// Only returns a context that has the trail of ctx, and neither its end nor its other values.
func Only(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(ctx))
}

// Logged returns a handler that adds the ID of its context's request to each record, as request.
func Logged(h slog.Handler) slog.Handler { return logged{h} }

type logged struct{ slog.Handler }

// Handle implements slog.Handler.
func (l logged) Handle(ctx context.Context, r slog.Record) error {
	if id := ID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request", id))
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l logged) WithAttrs(attrs []slog.Attr) slog.Handler { return logged{l.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (l logged) WithGroup(name string) slog.Handler { return logged{l.Handler.WithGroup(name)} }
