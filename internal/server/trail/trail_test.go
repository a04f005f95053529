package trail

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// TestBetweenRoles: a trail is the same at the other end, whatever else is in the headers.
func TestBetweenRoles(t *testing.T) {
	ctx := Begin(t.Context())
	id := ID(ctx)
	if len(id) != 32 || ID(Begin(ctx)) != id || ID(Begin(t.Context())) == id {
		t.Errorf("the ID is %q", id)
	}
	h := http.Header{"Tracestate": {"a=b"}, "Baggage": {"c=d"}}
	Inject(ctx, h)
	there := Extract(t.Context(), h)
	if ID(there) != id || trace.SpanContextFromContext(there).TraceState().Len() != 0 {
		t.Errorf("%v arrives as %v", h, trace.SpanContextFromContext(there))
	}
	if kept := From(t.Context(), Text(there)); ID(kept) != id || Text(t.Context()) != "" ||
		ID(From(t.Context(), "x")) != "" {
		t.Error("a kept trail is another one")
	}
	if ID(Only(there)) != id || Only(there).Done() != nil {
		t.Error("a detached trail is another one")
	}
}

// TestHostile: headers of callers that are not valid give no trail, and none of them stays.
func TestHostile(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, values := range [][]string{{good, good}, {""}, {"x"}, {good + "-x"}, {good + "\r\nA: b"},
		{strings.Repeat("0", 1<<16)}, {"ff" + good[2:]}, {"00-" + strings.Repeat("0", 32) + good[35:]},
		{strings.ToUpper(good)}} {
		h := http.Header{"Traceparent": values, "Tracestate": {"x"}, "Baggage": {"y"}, "Other": {"z"}}
		if s := Strip(h); s.IsValid() {
			t.Errorf("%.80q is the trail %v", values, s)
		}
		if len(h) != 1 {
			t.Errorf("%v stays", h)
		}
		if s := trace.SpanContextFromContext(Extract(t.Context(),
			http.Header{"Traceparent": values})); s.IsValid() {
			t.Errorf("%.80q is extracted as %v", values, s)
		}
	}
	h := http.Header{"Traceparent": {good}, "Tracestate": {"vendor=content"}}
	s := Strip(h)
	if s.TraceID().String() != good[3:35] || s.TraceState().Len() != 0 || len(h) != 0 {
		t.Errorf("%v, and %v stays", s, h)
	}
}

// FuzzHeaders: no header makes a trail that is written otherwise than it was read.
func FuzzHeaders(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b")
	f.Fuzz(func(t *testing.T, parent, state string) {
		h := http.Header{"Traceparent": {parent}, "Tracestate": {state}}
		ctx := Extract(context.Background(), h)
		if ID(ctx) == "" {
			return
		}
		out := http.Header{}
		Inject(ctx, out)
		if got := out.Get("Traceparent"); !strings.HasPrefix(parent[2:], got[2:53]) || len(out) != 1 {
			t.Errorf("%q became %v", parent, out)
		}
	})
}

// TestLogged: records have the ID of their request, and only those that belong to one.
func TestLogged(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(Logged(slog.NewJSONHandler(&b, nil))).With("role", "node").WithGroup("g")
	log.Info("outside")
	if strings.Contains(b.String(), "request") {
		t.Errorf("%s", b.String())
	}
	ctx := Begin(t.Context())
	log.InfoContext(ctx, "inside")
	if !strings.Contains(b.String(), `"request":"`+ID(ctx)+`"`) {
		t.Errorf("%s", b.String())
	}
}

func BenchmarkBegin(b *testing.B) {
	for b.Loop() {
		h := http.Header{}
		ctx := Begin(context.Background())
		Strip(h)
		Inject(ctx, h)
	}
}
