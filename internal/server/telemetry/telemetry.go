// Package telemetry is what a server tells about itself: metrics on a page for Prometheus, and
// traces and metrics for an OpenTelemetry collector. Neither has content: no text of a document, no
// command, file name, environment, token or name that a caller chose.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/config"
)

// Options are the parts of a Telemetry.
type Options struct {
	Settings config.Telemetry
	Roles    []string
	Node     string // of this process, as config.Machine.Name
	// Ready returns an error while the process waits as a standby; nil: it never does.
	Ready func(context.Context) error
	// NoTurns returns why the node of this process gets no turns; nil: it gets some, or there is none.
	NoTurns func() error
	Log     *slog.Logger
}

// A Measurer has values that are asked for when somebody looks at them.
type Measurer interface {
	// Measure calls emit with values of metrics of Metrics, the values of whose labels follow in
	// their order. It must return soon, and is called from several goroutines.
	Measure(emit func(name string, value float64, labels ...string))
}

// A Telemetry is safe for concurrent use. One of settings that are all off costs about nothing.
type Telemetry struct {
	o       Options
	log     *slog.Logger
	tracer  trace.Tracer
	tracing bool    // tracer makes spans
	meters  *meters // nil: nobody reads metrics

	registry *prometheus.Registry // of the page; nil: there is none
	listener net.Listener         // the same
	close    []func(context.Context) error
}

// Open opens the page's listener and prepares exports. Close it. The error is of kind Invalid or
// Unavailable.
func Open(ctx context.Context, o Options) (*Telemetry, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Telemetry{o: o, log: o.Log, tracer: noop.NewTracerProvider().Tracer("")}
	if err := t.open(ctx); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Telemetry) open(ctx context.Context) error {
	s := t.o.Settings
	var readers []sdkmetric.Option
	if s.Listen != "" {
		reader, err := t.openPage(ctx)
		if err != nil {
			return err
		}
		readers = append(readers, sdkmetric.WithReader(reader))
	}
	about := resource.NewSchemaless(attribute.String("service.name", "turnstone"),
		attribute.String("service.version", turnstone.Version),
		attribute.String("service.instance.id", t.o.Node),
		attribute.StringSlice("turnstone.roles", t.o.Roles))
	if s.Endpoint != "" {
		reader, traces, err := t.exporters(ctx)
		if err != nil {
			return err
		}
		readers = append(readers, sdkmetric.WithReader(reader))
		provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(traces), sdktrace.WithResource(about),
			sdktrace.WithSampler(sdktrace.ParentBased(
				sdktrace.TraceIDRatioBased(float64(s.Sample)/100))))
		t.tracing = true
		t.tracer = provider.Tracer("turnstone", trace.WithInstrumentationVersion(turnstone.Version))
		t.close = append(t.close, provider.Shutdown)
	}
	if len(readers) == 0 {
		return nil
	}
	provider := sdkmetric.NewMeterProvider(append(readers, sdkmetric.WithResource(about),
		sdkmetric.WithCardinalityLimit(maxSeries))...)
	t.close = append(t.close, provider.Shutdown)
	var err error
	if t.meters, err = newMeters(provider.Meter("turnstone")); err != nil {
		return failed(err)
	}
	t.meters.add(build, 1, turnstone.Version)
	return nil
}

// maxSeries bounds the series of a metric, if a bound of a label is a mistake.
const maxSeries = 1000

func failed(err error) error {
	return turnstone.NewError("server.telemetry", turnstone.KindInvalid, "the telemetry", err)
}

// closeTime bounds the last export.
const closeTime = 5 * time.Second

// Close exports what is left, for 5 s at most, and closes the page.
func (t *Telemetry) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, f := range t.close {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				t.log.Debug("the end of the telemetry is not exported", "error", err)
			}
		})
	}
	wg.Wait()
	t.close = nil
	if t.listener != nil {
		_ = t.listener.Close()
	}
	return nil
}

// Watch makes m's values part of the metrics, until the Telemetry is closed.
func (t *Telemetry) Watch(m Measurer) {
	if t.meters != nil {
		t.meters.watch(m)
	}
}

// tenant returns the label of a tenant: its name if the settings list it.
func (t *Telemetry) tenant(name string) string {
	for _, known := range t.o.Settings.Tenants {
		if known == name {
			return name
		}
	}
	return other
}

// other is the label of all values that have none of their own.
const other = "other"

// meters are the instruments of all metrics.
type meters struct {
	labels     map[string][]string
	counters   map[string]metric.Float64Counter
	gauges     map[string]metric.Float64UpDownCounter
	histograms map[string]metric.Float64Histogram

	mu       sync.Mutex
	watched  []Measurer
	measured map[string]metric.Float64Observable
}

func newMeters(m metric.Meter) (*meters, error) {
	all := &meters{labels: map[string][]string{}, counters: map[string]metric.Float64Counter{},
		gauges:     map[string]metric.Float64UpDownCounter{},
		histograms: map[string]metric.Float64Histogram{},
		measured:   map[string]metric.Float64Observable{}}
	var observables []metric.Observable
	for _, one := range metrics {
		all.labels[one.Name] = one.Labels
		help := metric.WithDescription(one.Help)
		var err error
		switch {
		case one.measured && one.Kind == Counter:
			all.measured[one.Name], err = m.Float64ObservableCounter(one.Name, help)
		case one.measured:
			all.measured[one.Name], err = m.Float64ObservableGauge(one.Name, help)
		case one.Kind == Counter:
			all.counters[one.Name], err = m.Float64Counter(one.Name, help)
		case one.Kind == Gauge:
			all.gauges[one.Name], err = m.Float64UpDownCounter(one.Name, help)
		default:
			all.histograms[one.Name], err = m.Float64Histogram(one.Name, help,
				metric.WithExplicitBucketBoundaries(one.buckets...))
		}
		if err != nil {
			return nil, err
		}
		if one.measured {
			observables = append(observables, all.measured[one.Name])
		}
	}
	_, err := m.RegisterCallback(all.observe, observables...)
	return all, err
}

func (m *meters) watch(w Measurer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = append(m.watched, w)
}

// observe asks all Measurers.
func (m *meters) observe(_ context.Context, o metric.Observer) error {
	m.mu.Lock()
	watched := m.watched
	m.mu.Unlock()
	for _, w := range watched {
		w.Measure(func(name string, value float64, labels ...string) {
			if i := m.measured[name]; i != nil {
				o.ObserveFloat64(i, value, metric.WithAttributeSet(m.set(name, labels)))
			}
		})
	}
	return nil
}

// set returns the attributes of a metric's labels.
func (m *meters) set(name string, values []string) attribute.Set {
	names := m.labels[name]
	all := make([]attribute.KeyValue, 0, 3)
	for i, v := range values[:min(len(names), len(values))] {
		all = append(all, attribute.String(names[i], v))
	}
	return attribute.NewSet(all...)
}

// add adds to a counter or a gauge.
func (m *meters) add(name string, n float64, labels ...string) {
	if m == nil {
		return
	}
	set := metric.WithAttributeSet(m.set(name, labels))
	if c := m.counters[name]; c != nil {
		c.Add(context.Background(), n, set)
	} else {
		m.gauges[name].Add(context.Background(), n, set)
	}
}

// took adds a time to a histogram.
func (m *meters) took(name string, d time.Duration, labels ...string) {
	if m == nil {
		return
	}
	m.histograms[name].Record(context.Background(), d.Seconds(),
		metric.WithAttributeSet(m.set(name, labels)))
}
