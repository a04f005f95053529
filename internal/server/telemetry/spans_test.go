package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/trail"
)

// A sink is an OpenTelemetry collector.
type sink struct {
	*httptest.Server
	mu      sync.Mutex
	spans   []*tracev1.Span
	raw     bytes.Buffer // all that was sent, decompressed
	metrics int
	headers http.Header
	status  int
}

func newSink(t *testing.T) *sink {
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.headers = r.Header
		if s.status != 0 {
			w.WriteHeader(s.status)
			return
		}
		in, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(in)
		if err != nil {
			t.Error(err)
		}
		s.raw.Write(body)
		if r.URL.Path != "/v1/traces" {
			s.metrics++
			return
		}
		var m collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &m); err != nil {
			t.Error(err)
		}
		for _, r := range m.ResourceSpans {
			for _, scope := range r.ScopeSpans {
				s.spans = append(s.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// named returns the spans with a name, after tel is closed.
func (s *sink) named(name string) (all []*tracev1.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.spans {
		if x.Name == name {
			all = append(all, x)
		}
	}
	return all
}

func (s *sink) one(t *testing.T, name string) *tracev1.Span {
	t.Helper()
	all := s.named(name)
	if len(all) != 1 {
		t.Fatalf("there are %d spans %q", len(all), name)
	}
	return all[0]
}

const theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// TestTrace: a call is one trace through the roles to its turn, with the phases and steps; the span
// of the caller is a link. Nothing that the caller or the document says is in it.
func TestTrace(t *testing.T) {
	s := newSink(t)
	headers := filepath.Join(t.TempDir(), "headers")
	check(t, os.WriteFile(headers, []byte("Authorization: Bearer k\n"), 0o600))
	tel, err := Open(t.Context(), Options{Settings: config.Telemetry{Endpoint: s.URL, Sample: 100,
		Interval: time.Hour, Headers: headers}, Roles: []string{"gateway"}, Node: "one"})
	check(t, err)
	var kept string
	_, client := caller(t, tel, func(ctx context.Context) { kept = trail.Text(ctx) })
	q := connect.NewRequest(&v1.GetSandboxRequest{SandboxId: "marker"})
	q.Header().Set("Traceparent", theirs)
	q.Header().Set("Tracestate", "x=marker")
	q.Header().Set("Baggage", "x=marker")
	answer, err := client.GetSandbox(t.Context(), q)
	check(t, err)
	report := &turnstone.TurnReport{ID: "t_1", Result: turnstone.ResultFailed, Error: "marker",
		Hint: "marker", Session: "marker", Image: "marker", Receipt: "marker", Branch: "marker",
		Phases: []turnstone.Phase{{Name: "restore", Took: turnstone.Millis(time.Millisecond)},
			{Name: "steps", Took: turnstone.Millis(2 * time.Millisecond)}},
		Steps: []turnstone.StepReport{{Name: "marker", Stdout: "marker", Status: "failed",
			Millis: 2}}}
	_, err = tel.Turns("acme", fake{report: report}).Run(trail.From(t.Context(), kept),
		executor.Request{}, nil)
	check(t, err)
	check(t, tel.Close())

	gateway, controller := s.one(t, "gateway SandboxService/GetSandbox"),
		s.one(t, "controller SandboxService/GetSandbox")
	id := hex.EncodeToString(gateway.TraceId)
	if id == theirs[3:35] || len(gateway.ParentSpanId) != 0 || len(gateway.Links) != 1 ||
		hex.EncodeToString(gateway.Links[0].TraceId) != theirs[3:35] {
		t.Errorf("the caller chose the trace: %v", gateway)
	}
	if got := answer.Header().Get(trail.Header); got != id {
		t.Errorf("the request is %s, its trace %s", got, id)
	}
	turn, phase, step := s.one(t, "turn"), s.one(t, "phase steps"), s.one(t, "step")
	for _, x := range []struct{ child, parent *tracev1.Span }{{controller, gateway}, {turn, controller},
		{phase, turn}, {s.one(t, "phase restore"), turn}, {step, phase}} {
		if !bytes.Equal(x.child.TraceId, gateway.TraceId) ||
			!bytes.Equal(x.child.ParentSpanId, x.parent.SpanId) {
			t.Errorf("%s is not a child of %s", x.child.Name, x.parent.Name)
		}
	}
	if took := phase.EndTimeUnixNano - phase.StartTimeUnixNano; took != 2_000_000 {
		t.Errorf("the steps took %d ns", took)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.metrics == 0 || s.headers.Get("Authorization") != "Bearer k" {
		t.Errorf("%d exports of metrics, with %v", s.metrics, s.headers)
	}
	if bytes.Contains(s.raw.Bytes(), []byte("marker")) {
		t.Error("the collector gets content")
	}
}

// TestNodePhases: the phases of a sandbox's creation are spans below the call at the node, with their
// times, and at no other role.
func TestNodePhases(t *testing.T) {
	s := newSink(t)
	tel, err := Open(t.Context(), Options{Settings: config.Telemetry{Endpoint: s.URL, Sample: 100,
		Interval: time.Hour}})
	check(t, err)
	answer := connect.NewResponse(&v1.CreateSandboxResponse{Phases: []*v1.Phase{
		{Name: "queue", Took: durationpb.New(time.Millisecond)},
		{Name: "take", Took: durationpb.New(2 * time.Millisecond),
			After: durationpb.New(time.Millisecond)}}})
	for _, role := range []string{config.Controller, config.Node} {
		_, err := tel.Calls(role).WrapUnary(func(context.Context, connect.AnyRequest) (
			connect.AnyResponse, error) {
			return answer, nil
		})(t.Context(), connect.NewRequest(&v1.CreateSandboxRequest{}))
		check(t, err)
	}
	check(t, tel.Close())
	queue, take := s.one(t, "node phase queue"), s.one(t, "node phase take")
	for _, x := range []*tracev1.Span{queue, take} {
		if !bytes.Equal(x.TraceId, queue.TraceId) || len(x.ParentSpanId) == 0 ||
			!bytes.Equal(x.ParentSpanId, queue.ParentSpanId) {
			t.Errorf("%s is not a child of the call", x.Name)
		}
	}
	if took := take.EndTimeUnixNano - take.StartTimeUnixNano; took != 2_000_000 ||
		take.StartTimeUnixNano != queue.EndTimeUnixNano {
		t.Errorf("take: %d ns, %d ns after queue", took, take.StartTimeUnixNano-queue.EndTimeUnixNano)
	}
}

// TestSampling: nothing is traced with 0 %, whatever a caller asks for, and requests have IDs.
func TestSampling(t *testing.T) {
	s := newSink(t)
	tel, err := Open(t.Context(), Options{Settings: config.Telemetry{Endpoint: s.URL,
		Interval: time.Hour}})
	check(t, err)
	_, client := caller(t, tel, nil)
	q := connect.NewRequest(&v1.GetSandboxRequest{})
	q.Header().Set("Traceparent", theirs)
	answer, err := client.GetSandbox(t.Context(), q)
	check(t, err)
	check(t, tel.Close())
	if len(s.spans) > 0 || len(answer.Header().Get(trail.Header)) != 32 {
		t.Errorf("%d spans, request %q", len(s.spans), answer.Header().Get(trail.Header))
	}
}

// TestCollectorAway: a collector that refuses or is away costs callers nothing, and is counted.
func TestCollectorAway(t *testing.T) {
	s := newSink(t)
	s.status = http.StatusBadRequest
	tel := open(t, config.Telemetry{Endpoint: s.URL, Listen: "127.0.0.1:0", Sample: 100,
		Interval: time.Hour})
	_, client := caller(t, tel, nil)
	_, err := client.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{}))
	check(t, err)
	(&sent{t: tel, signal: "traces"}).note(t.Context(), errors.New(strings.Repeat("x", 1000)))
	if text := page(t, tel); !strings.Contains(text,
		`turnstone_telemetry_exports_total{result="failed",signal="traces"} 1`) {
		t.Errorf("it is not counted:\n%s", text)
	}
}
