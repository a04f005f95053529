package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/peers"
)

// TestSilent: callers learn that the controller does not answer, and not where it should be. What it
// answers stays as it is.
func TestSilent(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	dir := t.TempDir()
	p, err := peers.Open(config.Peers{}, log)
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context, transport http.RoundTripper, url string) error {
		c := connectv1.NewControllerServiceClient(&http.Client{Transport: transport}, url,
			append(api.ClientOptions(), connect.WithInterceptors(silent(log)))...)
		_, err := c.LocateChannel(ctx, connect.NewRequest(&v1.LocateChannelRequest{}))
		return api.FromConnect(err)
	}
	for _, address := range []string{"unix:" + filepath.Join(dir, "peers.sock"), "127.0.0.1:1"} {
		text.Reset()
		err := call(t.Context(), p.Transport(address, config.Controller), "http://controller")
		if turnstone.KindOf(err) != turnstone.KindUnavailable || api.RetryAfter(err) == 0 ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", address, err)
		}
		answer := api.ToConnect(err).Error()
		if _, place, _ := strings.Cut(address, ":"); strings.Contains(answer, place) ||
			strings.Contains(answer, "dial") || !strings.Contains(text.String(), address) {
			t.Errorf("%s: the caller gets %q, and the log %q", address, answer, text.String())
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"code":"unavailable","message":"its own words"}`))
	}))
	defer s.Close()
	if err := call(t.Context(), http.DefaultTransport, s.URL); !strings.Contains(err.Error(),
		"its own words") {
		t.Errorf("its own error became %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := call(ctx, http.DefaultTransport, s.URL); turnstone.KindOf(err) !=
		turnstone.KindCanceled {
		t.Errorf("of a call that its caller gave up: %v", err)
	}
}
