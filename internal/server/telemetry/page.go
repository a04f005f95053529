package telemetry

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/server/config"
)

// Path is the path of the page. HealthPath says that the process answers, ReadyPath that it serves: a
// controller that waits as a standby does not.
const (
	Path       = "/metrics"
	HealthPath = "/healthz"
	ReadyPath  = "/readyz"
)

// Bounds of the page.
const (
	pageTime  = 10 * time.Second // of a request, and of its answer
	pageHead  = 8 << 10
	pageReads = 4 // at one time
)

// openPage opens the listener, and returns what reads the metrics for the page.
func (t *Telemetry) openPage(ctx context.Context) (sdkmetric.Reader, error) {
	at := t.o.Settings.Listen
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return nil, turnstone.NewError("server.listen", turnstone.KindUnavailable, at, err).
			WithHint("choose another telemetry.listen")
	}
	t.listener = l
	if !config.Loopback(l.Addr().String()) && t.o.Settings.Network != "on" { // the address of a name
		return nil, turnstone.Errorf("server.listen", turnstone.KindInvalid, at,
			"is reached from other machines, and the page needs no token").
			WithHint("use an address of 127.0.0.1, or set telemetry.network to on")
	}
	t.registry = prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := t.registry.Register(c); err != nil {
			return nil, failed(err)
		}
	}
	reader, err := exporter.New(exporter.WithRegisterer(t.registry), exporter.WithoutScopeInfo(),
		exporter.WithoutTargetInfo(),
		exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithoutSuffixes))
	if err != nil {
		return nil, failed(err)
	}
	return reader, nil
}

// Address returns where the page is, HOST:PORT; empty: nowhere.
func (t *Telemetry) Address() string {
	if t.listener == nil {
		return ""
	}
	return t.listener.Addr().String()
}

// Serve answers the page until ctx ends. It returns at once if there is no page. The error is of
// kind Unavailable if the listener fails.
func (t *Telemetry) Serve(ctx context.Context) error {
	if t.listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: pageReads, Timeout: pageTime, EnableOpenMetrics: true,
		ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelError)}))
	mux.HandleFunc("GET "+HealthPath, func(w http.ResponseWriter, r *http.Request) {
		t.health(w, r, http.StatusOK)
	})
	mux.HandleFunc("GET "+ReadyPath, func(w http.ResponseWriter, r *http.Request) {
		t.health(w, r, http.StatusServiceUnavailable)
	})
	s := &http.Server{Handler: t.addressed(mux), MaxHeaderBytes: pageHead, ReadTimeout: pageTime,
		WriteTimeout: 2 * pageTime, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelDebug)}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(t.listener); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
		return turnstone.NewError("server.telemetry", turnstone.KindUnavailable, t.Address(), err)
	}
	return nil
}

// health answers ok, or standby with the status of one. Below it is why a node gets no turns.
func (t *Telemetry) health(w http.ResponseWriter, r *http.Request, standby int) {
	text := "ok\n"
	why := t.noTurns()
	switch {
	case t.o.Ready != nil && t.o.Ready(r.Context()) != nil:
		text = "standby\n"
		w.WriteHeader(standby)
	case why != nil && len(t.o.Roles) == 1:
		text = ""
		w.WriteHeader(standby)
	}
	if why != nil { // other roles of the process work
		text += "no turns: " + brief.Line(why.Error()) + "\n"
	}
	_, _ = io.WriteString(w, text) // the caller may have gone
}

func (t *Telemetry) noTurns() error {
	if t.o.NoTurns == nil {
		return nil
	}
	return t.o.NoTurns()
}

// addressed refuses requests whose host is a name, if the page is on loopback: a page of another
// site in a browser of this machine has such a host when its name leads here.
func (t *Telemetry) addressed(next http.Handler) http.Handler {
	if !config.Loopback(t.Address()) {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			http.Error(w, "the host is not this machine", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
