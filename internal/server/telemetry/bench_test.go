package telemetry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/config"
)

// BenchmarkCall is a call through the handlers of a gateway and a controller in one process, without
// a network: bare, with a trail alone (all settings off), with the page, and with all traced.
func BenchmarkCall(b *testing.B) {
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	defer away.Close()
	for _, c := range []struct {
		name     string
		settings *config.Telemetry
	}{{"bare", nil}, {"off", &config.Telemetry{}},
		{"page", &config.Telemetry{Listen: "127.0.0.1:0"}},
		{"traced", &config.Telemetry{Listen: "127.0.0.1:0", Endpoint: away.URL, Sample: 100,
			Interval: time.Hour}}} {
		b.Run(c.name, func(b *testing.B) {
			path, h := connectv1.NewSandboxServiceHandler(service{})
			mux := http.NewServeMux()
			if c.settings != nil {
				tel, err := Open(b.Context(), Options{Settings: *c.settings})
				check(b, err)
				defer func() { check(b, tel.Close()) }()
				path, h = connectv1.NewSandboxServiceHandler(service{},
					connect.WithInterceptors(tel.Calls(config.Controller)))
				mux.Handle(path, h)
				h = tel.Requests(mux)
			} else {
				mux.Handle(path, h)
				h = mux
			}
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, path+"GetSandbox", strings.NewReader("{}"))
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
