package telemetry

import (
	"context"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"turnstone.dev/turnstone"
)

const (
	exportTime  = 10 * time.Second // of one export
	maxResponse = 64 << 10         // of the collector, in bytes
	warnEvery   = time.Minute      // between two warnings about exports that fail
)

// exporters returns what reads metrics for the collector, and what sends spans to it. All that the
// variables OTEL_* of the environment could say is set here: the collector is that of the settings.
func (t *Telemetry) exporters(ctx context.Context) (sdkmetric.Reader, sdktrace.SpanExporter, error) {
	s := t.o.Settings
	headers, err := s.ReadHeaders()
	if err != nil {
		return nil, nil, turnstone.NewError("server.telemetry", turnstone.KindInvalid, s.Headers, err)
	}
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, nil, failed(err) // the settings were checked
	}
	traces, err := otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(at.JoinPath("v1", "traces").String()),
		otlptracehttp.WithHeaders(headers), otlptracehttp.WithTimeout(exportTime),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithMaxResponseSize(maxResponse))
	if err != nil {
		return nil, nil, failed(err)
	}
	values, err := otlpmetrichttp.New(ctx,
		otlpmetrichttp.WithEndpointURL(at.JoinPath("v1", "metrics").String()),
		otlpmetrichttp.WithHeaders(headers), otlpmetrichttp.WithTimeout(exportTime),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression),
		otlpmetrichttp.WithMaxResponseSize(maxResponse))
	if err != nil {
		return nil, nil, failed(err)
	}
	reader := sdkmetric.NewPeriodicReader(metricExporter{values, &sent{t: t, signal: "metrics"}},
		sdkmetric.WithInterval(s.Interval), sdkmetric.WithTimeout(exportTime))
	return reader, spanExporter{traces, &sent{t: t, signal: "traces"}}, nil
}

// sent counts exports, and says sometimes that they fail. What it is told is no error for the SDK,
// whose handler of errors is one for the whole process.
type sent struct {
	t      *Telemetry
	signal string

	mu   sync.Mutex
	said time.Time
}

func (s *sent) note(ctx context.Context, err error) {
	if err == nil {
		s.t.meters.add(exports, 1, s.signal, "ok")
		return
	}
	s.t.meters.add(exports, 1, s.signal, "failed")
	level := slog.LevelDebug
	s.mu.Lock()
	if time.Since(s.said) >= warnEvery {
		s.said, level = time.Now(), slog.LevelWarn
	}
	s.mu.Unlock()
	text := err.Error()
	s.t.log.Log(ctx, level, "the OpenTelemetry collector does not take what is sent",
		"signal", s.signal, "error", text[:min(len(text), 300)])
}

type spanExporter struct {
	sdktrace.SpanExporter
	sent *sent
}

// ExportSpans implements sdktrace.SpanExporter.
func (e spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.sent.note(ctx, e.SpanExporter.ExportSpans(ctx, spans))
	return nil
}

type metricExporter struct {
	sdkmetric.Exporter
	sent *sent
}

// Export implements sdkmetric.Exporter.
func (e metricExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	e.sent.note(ctx, e.Exporter.Export(ctx, m))
	return nil
}
