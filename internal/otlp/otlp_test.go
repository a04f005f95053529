package otlp

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"turnstone.dev/turnstone"
)

// aTrace is a trace of one step with these commands.
func aTrace(commands int) Read {
	at := time.Date(2026, 11, 22, 6, 7, 42, 0, time.UTC)
	exit := 2
	return func(each func(turnstone.TraceLine) error) error {
		lines := []turnstone.TraceLine{
			{Turn: &turnstone.TraceHead{ID: "t_06h03ngqkbsd5up1q4", Number: 2, Started: at,
				Millis: 5, Result: turnstone.ResultFailed}},
			{Step: &turnstone.TraceStep{Index: 1, Name: "build", Started: at, Millis: 4,
				Status: turnstone.StepFailed, ExitCode: &exit,
				Connections: []turnstone.ConnectionReport{{Protocol: "tcp", Host: "example.org",
					Address: "192.0.2.1:443", Start: at, End: at.Add(time.Millisecond)}},
				Network: &turnstone.NetworkReport{Refused: []turnstone.RefusalReport{
					{Protocol: "dns", Target: "internal", Reason: "denied", Count: 1}}}}},
		}
		for i := range commands {
			lines = append(lines, turnstone.TraceLine{Command: &turnstone.CommandReport{ID: i,
				Parent: i - 1, Text: "make", ExitCode: &exit,
				Duration: turnstone.Millis(time.Millisecond),
				Place:    &turnstone.Place{Line: 7, Column: 1}}})
		}
		for _, l := range append(lines, turnstone.TraceLine{End: &turnstone.TraceEnd{}}) {
			if err := each(l); err != nil {
				return err
			}
		}
		return nil
	}
}

// spans returns the spans of messages by name.
func spans(all []ptrace.Traces) map[string]ptrace.Span {
	found := map[string]ptrace.Span{}
	for _, t := range all {
		s := t.ResourceSpans().At(0).ScopeSpans().At(0).Spans()
		for i := range s.Len() {
			found[s.At(i).Name()] = s.At(i)
		}
	}
	return found
}

// TestWrite: the file has OTLP/JSON with hex IDs, which OpenTelemetry's own decoder reads.
func TestWrite(t *testing.T) {
	var b bytes.Buffer
	if err := Write(t.Context(), &b, aTrace(1)); err != nil {
		t.Fatal(err)
	}
	var u ptrace.JSONUnmarshaler
	got, err := u.UnmarshalTraces(bytes.TrimSpace(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	s := spans([]ptrace.Traces{got})
	turn, step, conn, cmd := s["turn 2"], s["step build"], s["connect tcp"], s["make"]
	if len(s) != 4 || step.ParentSpanID() != turn.SpanID() ||
		cmd.ParentSpanID() != step.SpanID() || conn.ParentSpanID() != step.SpanID() ||
		turn.TraceID() != cmd.TraceID() || turn.Status().Code() != ptrace.StatusCodeError {
		t.Errorf("%s", b.Bytes())
	}
	for name, want := range map[string]any{"process.command_line": "make",
		"process.exit.code": int64(2), "code.line.number": int64(7), "error.type": "2"} {
		if v, ok := cmd.Attributes().Get(name); !ok || v.AsRaw() != want {
			t.Errorf("%s: %v", name, v)
		}
	}
	if v, _ := conn.Attributes().Get("server.address"); v.AsString() != "example.org" {
		t.Errorf("%v", conn.Attributes().AsRaw())
	}
	if step.Events().Len() != 1 || step.Events().At(0).Name() != "network.refused" {
		t.Errorf("%d events", step.Events().Len())
	}
	var plain map[string]any
	if err := json.Unmarshal(b.Bytes(), &plain); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), `"traceId":"`+turn.TraceID().String()+`"`) {
		t.Errorf("IDs are not hexadecimal: %s", b.String())
	}
}

// A receiver takes OTLP over HTTP, decoded by OpenTelemetry's modules.
type receiver struct {
	t    *testing.T
	mu   sync.Mutex
	got  []ptrace.Traces
	head http.Header
	fail int // status for all requests; 0: accept
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != 0 {
		w.WriteHeader(r.fail)
		return
	}
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(req.Body)
		if err != nil {
			r.t.Error(err)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	if err != nil {
		r.t.Error(err)
	}
	in := ptraceotlp.NewExportRequest()
	if err := in.UnmarshalProto(b); err != nil || req.URL.Path != "/v1/traces" {
		r.t.Errorf("%s: %v", req.URL.Path, err)
	}
	r.got, r.head = append(r.got, in.Traces()), req.Header
	out, err := ptraceotlp.NewExportResponse().MarshalProto()
	if err != nil {
		r.t.Error(err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(out)
}

// TestSend: a collector gets all spans, in several messages, also by the standard variables.
func TestSend(t *testing.T) {
	r := &receiver{t: t}
	srv := httptest.NewServer(r)
	defer srv.Close()
	const commands = 2*batch + 10
	if err := Send(t.Context(), srv.URL, aTrace(commands)); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range r.got {
		n += m.SpanCount()
	}
	if n != commands+3 || len(r.got) != 3 {
		t.Errorf("%d spans in %d messages", n, len(r.got))
	}
	r.got = nil
	t.Setenv(varAll, "")
	t.Setenv(varTraces, "")
	if err := Send(t.Context(), "", aTrace(1)); turnstone.KindOf(err) !=
		turnstone.KindInvalid || turnstone.HintOf(err) == "" {
		t.Errorf("without an endpoint: %v", err)
	}
	t.Setenv(varTraces, srv.URL+"/v1/traces")
	if err := Send(t.Context(), "", aTrace(1)); err != nil || len(r.got) != 1 {
		t.Fatal(err)
	}
	r.got = nil
	t.Setenv(varTraces, "")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	if err := Send(t.Context(), "", aTrace(1)); err != nil {
		t.Fatal(err)
	}
	if len(r.got) != 1 || r.head.Get("Authorization") != "Bearer x" ||
		r.head.Get("Content-Encoding") != "gzip" {
		t.Errorf("%d messages, %v", len(r.got), r.head)
	}
	r.fail = http.StatusUnauthorized
	if err := Send(t.Context(), "", aTrace(1)); turnstone.KindOf(err) !=
		turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
		t.Error(err)
	}
	for _, bad := range []string{"localhost:4318", "ftp://x", "http://", "\x00"} {
		if err := Send(t.Context(), bad, aTrace(1)); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// FuzzConvert: whatever a trace of an imported session says, its spans can be written and read by
// OpenTelemetry's decoder, and each is of the turn's one trace.
func FuzzConvert(f *testing.F) {
	for _, n := range []int{0, 1, 3} {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		if err := aTrace(n)(func(l turnstone.TraceLine) error { return enc.Encode(l) }); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte(`{"command":{"id":1,"parent":1}}` + "\n" + `{"step":{"index":-1,"started":"0001-01-01T00:00:01Z"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		read := func(each func(turnstone.TraceLine) error) error {
			for line := range bytes.Lines(b) {
				var l turnstone.TraceLine
				if json.Unmarshal(line, &l) != nil {
					continue
				}
				if err := each(l); err != nil {
					return err
				}
			}
			return nil
		}
		var out bytes.Buffer
		if err := Write(t.Context(), &out, read); err != nil {
			t.Fatal(err)
		}
		var u ptrace.JSONUnmarshaler
		for line := range bytes.Lines(out.Bytes()) {
			if _, err := u.UnmarshalTraces(bytes.TrimSpace(line)); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	})
}
