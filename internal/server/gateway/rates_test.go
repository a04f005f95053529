package gateway

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
)

// stopped gives rates a clock that stands still, so that a slow test gets no more requests.
func stopped(o *Options, _ *ServeOptions) {
	now := time.Now()
	o.now = func() time.Time { return now }
}

// TestTokenRate answers a token that comes too often, with the time to wait, and other tokens as
// before.
func TestTokenRate(t *testing.T) {
	s := newScene(t, limits(Limits{Rate: 1, Burst: 5, AddressRate: 1000, AddressBurst: 1000}), stopped)
	for name, p := range protocols {
		t.Run(name, func(t *testing.T) {
			c := s.client(t, s.token(t), p.two, p.options...)
			for range 5 {
				check(t, get(t.Context(), c))
			}
			err := get(t.Context(), c)
			refusedAs(t, err, connect.CodeResourceExhausted, "")
			if e := api.FromConnect(err); !api.Retryable(e) || api.RetryAfter(e) <= 0 ||
				api.RetryAfter(e) > time.Second {
				t.Errorf("retry after %s", api.RetryAfter(e))
			}
			s.works(t)
		})
	}
	token := s.token(t)
	for range 5 {
		check(t, get(t.Context(), s.client(t, token, false)))
	}
	answer := s.upgrade(t, "/turnstone/v1/nodes/n1/channel", token)
	if n, err := strconv.Atoi(answer.Header.Get("Retry-After")); answer.StatusCode != 429 ||
		err != nil || n < 1 {
		t.Errorf("%d %v", answer.StatusCode, answer.Header)
	}
}

// TestAddressRate limits an address before its tokens are looked at; behind a trusted proxy, the
// address is the one that the proxy names.
func TestAddressRate(t *testing.T) {
	transports := map[*scene]*http.Transport{}
	from := func(s *scene, address string) int {
		if transports[s] == nil {
			transports[s] = s.transport(t, false)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url()+HealthPath, nil)
		check(t, err)
		r.Header.Set("X-Forwarded-For", address)
		answer, err := transports[s].RoundTrip(r)
		check(t, err)
		_, _ = io.Copy(io.Discard, answer.Body) // so that the connection is used again
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	few := Limits{AddressRate: 1, AddressBurst: 2}
	behind := newScene(t, limits(few), stopped, func(o *Options, _ *ServeOptions) {
		o.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	for _, want := range []int{200, 200, 429} {
		if got := from(behind, "6.6.6.6, 192.0.2.1"); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
	// the requests of another door count with these
	door := httptest.NewRequest(http.MethodPost, "/sandboxes", nil)
	door.RemoteAddr = "127.0.0.1:1"
	door.Header.Set("X-Forwarded-For", "192.0.2.1")
	if err := behind.Arrive(door); turnstone.KindOf(err) != turnstone.KindExhausted ||
		api.RetryAfter(err) <= 0 {
		t.Errorf("at another door: %v", err)
	}
	if got := from(behind, "6.6.6.6, 192.0.2.2"); got != 200 {
		t.Errorf("another address: %d", got)
	}
	direct := newScene(t, limits(few), stopped)
	for n, want := range []int{200, 200, 429} {
		if got := from(direct, "192.0.2."+strconv.Itoa(n)); got != want {
			t.Errorf("a forged address: %d, want %d", got, want)
		}
	}
}

// TestConnectRate turns an address away that connects too often, before TLS costs anything.
func TestConnectRate(t *testing.T) {
	for _, changes := range [][]change{nil, {withTLS(t)}} {
		s := newScene(t, append(changes, stopped, limits(Limits{AddressRate: 1, AddressBurst: 20}))...)
		away := 0
		for range 40 {
			c := s.dial(t)
			if s.tls == nil {
				_, _ = io.WriteString(c, askHealth)
			}
			_ = c.(*net.TCPConn).CloseWrite()
			if b, _ := io.ReadAll(c); len(b) == 0 || bytes.Contains(b, []byte("503")) &&
				bytes.Contains(b, []byte("more often")) {
				away++
			}
		}
		if s.tls == nil && away != 20 {
			t.Errorf("%d of 40 were turned away", away)
		}
		s.works(t)
	}
}

func TestCallerOf(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		remote  string
		forward []string
		want    string
	}{
		{"192.0.2.1:5", nil, "192.0.2.1/32"},
		{"192.0.2.1:5", []string{"10.0.0.1"}, "192.0.2.1/32"},
		{"10.0.0.1:5", nil, "10.0.0.1/32"},
		{"10.0.0.1:5", []string{"192.0.2.9"}, "192.0.2.9/32"},
		{"10.0.0.1:5", []string{"6.6.6.6, 192.0.2.9, 10.3.3.3"}, "192.0.2.9/32"},
		{"10.0.0.1:5", []string{"6.6.6.6", "192.0.2.9"}, "192.0.2.9/32"},
		{"10.0.0.1:5", []string{"192.0.2.9, x"}, "10.0.0.1/32"},
		{"10.0.0.1:5", []string{"::ffff:192.0.2.9"}, "192.0.2.9/32"},
		{"[fd00::1]:5", []string{"2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:9::1%eth0]:5", nil, "2001:db8:1:2::/64"},
		{"[::ffff:10.0.0.1]:5", []string{"192.0.2.9"}, "192.0.2.9/32"},
		{"@", []string{"192.0.2.9"}, ""},
		{"", nil, ""},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{"X-Forwarded-For": c.forward}}
		got, ok := callerOf(r, proxies)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%s %q: %s, %v", c.remote, c.forward, got, ok)
		}
	}
}

// TestFullTable: keys that come beyond the table's bound share limits, nobody gets a fresh one, and
// memory does not grow.
func TestFullTable(t *testing.T) {
	now := time.Now()
	r := newRates[int](1, 2, func() time.Time { return now })
	r.max = 10
	for range 3 {
		for k := range 10 {
			r.take(k)
		}
	}
	limited := 0
	for k := 10; k < 10_000; k++ {
		if r.take(k) > 0 {
			limited++
		}
	}
	if limited < 9000 || len(r.table) != 10 {
		t.Errorf("%d of 9990 are limited, and the table has %d", limited, len(r.table))
	}
	for k := range 10 {
		if r.take(k) == 0 {
			t.Errorf("%d has a fresh limit", k)
		}
	}
	for k := range r.table { // as good as new
		delete(r.table, k)
		break
	}
	r.swept = time.Time{}
	if r.take(-1) != 0 {
		t.Error("a new key is limited")
	}
}

// TestManyCalls limits what a token may have at one time.
func TestManyCalls(t *testing.T) {
	s := newScene(t, limits(Limits{PerToken: 2}))
	c := s.client(t, s.token(t), true)
	first := watching(t, c)
	watching(t, c)
	err := get(t.Context(), c)
	refusedAs(t, err, connect.CodeResourceExhausted, "")
	if !api.Retryable(api.FromConnect(err)) {
		t.Error("not retryable")
	}
	s.works(t)
	_ = first.Close()
	for get(t.Context(), c) != nil { // the end of the stream makes room
		time.Sleep(time.Millisecond)
	}
}
