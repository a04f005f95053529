package registry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// TestGuard checks that a registry cannot redirect to this machine, unless it is on this machine
// itself.
func TestGuard(t *testing.T) {
	inner := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			_, _ = w.Write([]byte("secret"))
		}))
	defer inner.Close()
	outer := httptest.NewServer(http.RedirectHandler(inner.URL, http.StatusFound))
	defer outer.Close()
	get := func(g *guard, address string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: g}).Do(req)
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	address := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	public := newGuard(time.Minute, address("http://registry.example"))
	defer public.CloseIdleConnections()
	if err := get(public, inner.URL); turnstone.KindOf(err) != turnstone.KindInvalid ||
		again(err) || !strings.Contains(err.Error(), "not public") {
		t.Errorf("led to this machine: %v", err)
	}
	own := newGuard(time.Minute, address(outer.URL))
	defer own.CloseIdleConnections()
	if err := get(own, outer.URL); err != nil {
		t.Errorf("a registry on this machine: %v", err)
	}
	for ip, want := range map[string]bool{"192.168.1.1": true, "127.0.0.1": true,
		"169.254.169.254": false, "fe80::1": false, "8.8.8.8": true} {
		if err := own.allowed(netip.MustParseAddr(ip)); (err == nil) != want {
			t.Errorf("from a registry inside to %s: %v", ip, err)
		}
	}
	for _, ip := range []string{"10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "64:ff9b::a00:1",
		"fd00::1", "0.0.0.0"} {
		if public.allowed(netip.MustParseAddr(ip)) == nil {
			t.Errorf("from a public registry to %s", ip)
		}
	}
}
