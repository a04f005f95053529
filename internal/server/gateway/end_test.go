package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/auth"
)

// slow makes calls of GetTurn wait until the test lets them end.
func slow(began, leave chan struct{}) change {
	return func(o *Options, _ *ServeOptions) {
		control := o.Control
		o.Control = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "GetTurn") {
				began <- struct{}{}
				select {
				case <-leave:
				case <-r.Context().Done():
					http.Error(w, "it was ended", http.StatusServiceUnavailable)
					return
				}
			}
			control.ServeHTTP(w, r)
		})
	}
}

// TestEnd: no new request is taken; running calls and channels finish, watches end at once with an
// error that says to try again.
func TestEnd(t *testing.T) {
	for name, two := range map[string]bool{"1.1": false, "2": true} {
		t.Run(name, func(t *testing.T) {
			began, leave := make(chan struct{}), make(chan struct{})
			n := newNodeScene(t, limits(Limits{End: time.Minute}), slow(began, leave))
			c := n.client(t, n.token(t), two)
			channel, err := n.host(n.token(t)).Open(t.Context())
			check(t, err)
			stream := watching(t, n.client(t, n.token(t), two))
			answered := make(chan error, 1)
			go func() { answered <- get(t.Context(), c) }()
			<-began
			over := make(chan struct{})
			go func() { defer close(over); n.scene.end() }()
			err = ended(stream)
			if e, ok := api.FromConnect(err).(*api.Status); !ok || e.Code != connect.CodeUnavailable ||
				!api.Retryable(e) {
				t.Errorf("the watch: %v", err)
			}
			for refused := false; !refused; {
				conn, err := net.Dial("tcp", n.at)
				if refused = err != nil; !refused {
					_ = conn.Close()
				}
			}
			echo(t, channel, 5000)
			close(leave)
			check(t, <-answered)
			select {
			case <-over:
				t.Error("the gateway ended before its channel")
			default:
			}
			check(t, channel.Close())
			<-over
		})
	}
}

// TestEndLimit ends what does not finish in time.
func TestEndLimit(t *testing.T) {
	began, leave := make(chan struct{}), make(chan struct{})
	n := newNodeScene(t, limits(Limits{End: 50 * time.Millisecond}), slow(began, leave))
	c, err := n.host(n.token(t)).Open(t.Context())
	check(t, err)
	answered := make(chan error, 1)
	go func() { answered <- get(t.Context(), n.client(t, n.token(t), true)) }()
	<-began
	n.scene.end()
	if err := <-answered; err == nil {
		t.Error("the call was answered")
	}
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the channel ended as if the node had ended it")
	}
	_ = c.Close()
}

// TestGoAway tells a client of HTTP/2 to go elsewhere.
func TestGoAway(t *testing.T) {
	s := newScene(t, limits(Limits{End: time.Minute}))
	conn := s.dial(t)
	_, err := io.WriteString(conn, http2.ClientPreface)
	check(t, err)
	f := http2.NewFramer(conn, conn)
	check(t, f.WriteSettings())
	over := make(chan struct{})
	for away := false; !away; {
		frame, err := f.ReadFrame()
		check(t, err)
		switch x := frame.(type) {
		case *http2.SettingsFrame:
			if x.IsAck() {
				go func() { defer close(over); s.end() }()
			} else {
				check(t, f.WriteSettingsAck())
			}
		case *http2.GoAwayFrame:
			away = x.ErrCode == http2.ErrCodeNo
		}
	}
	<-over
}

// TestConnectionLimits answers connections beyond the limits, of an address and in all, and takes
// new ones when others end or are idle. A trusted proxy's connections are many callers'.
func TestConnectionLimits(t *testing.T) {
	one := "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	from := func(s *scene, host byte) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}
		c, err := d.DialContext(t.Context(), "tcp", s.at)
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ask := func(c net.Conn) string {
		_, _ = io.WriteString(c, one) // it may be closed already
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err.Error()
		}
		b, _ := io.ReadAll(answer.Body)
		return answer.Status + " " + string(b)
	}
	s := newScene(t, limits(Limits{Connections: 4, PerAddress: 2}))
	ok := func(c net.Conn) net.Conn {
		t.Helper()
		if got := ask(c); got != "200 OK ok\n" {
			t.Fatal(got)
		}
		return c
	}
	// a connection is idle a moment after its caller has the answer
	idle := func(n int, c net.Conn) net.Conn {
		for waiting := -1; waiting != n; time.Sleep(time.Millisecond) {
			s.network.mu.Lock()
			waiting = s.network.idle.Len()
			s.network.mu.Unlock()
		}
		return c
	}
	first, second, third := idle(1, ok(from(s, 1))), idle(2, ok(from(s, 2))), idle(3, ok(from(s, 1)))
	if got := ask(from(s, 1)); !strings.Contains(got, "503") || !strings.Contains(got, "the address has 2") {
		t.Error(got)
	}
	idle(4, ok(from(s, 3)))
	idle(4, ok(first)) // now the second has been idle for longest
	ok(from(s, 4))     // and makes room
	if got := ask(second); strings.Contains(got, "200") {
		t.Error(got)
	}
	ok(third)
	busy := newScene(t, limits(Limits{Connections: 2}))
	stream := watching(t, busy.client(t, busy.token(t), false))
	silent := from(busy, 2)
	for n := 0; n < 2; {
		busy.network.mu.Lock()
		n = len(busy.network.all)
		busy.network.mu.Unlock()
	}
	if got := ask(from(busy, 4)); !strings.Contains(got, "503") || !strings.Contains(got, "the server has 2") {
		t.Error(got)
	}
	_ = silent.Close()
	for got := ""; got != "200 OK ok\n"; {
		got = ask(from(busy, 4))
	}
	check(t, stream.Close())
	proxied := newScene(t, limits(Limits{Connections: 4, PerAddress: 1}), func(o *Options, _ *ServeOptions) {
		o.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	for range 4 {
		if got := ask(from(proxied, 1)); got != "200 OK ok\n" {
			t.Error(got)
		}
	}
	secure := newScene(t, limits(Limits{PerAddress: 1}), withTLS(t))
	from(secure, 1)
	if b, _ := io.ReadAll(from(secure, 1)); len(b) > 0 {
		t.Errorf("%q", b)
	}
}

// TestChannelsAreConnections: a channel counts until it ends.
func TestChannelsAreConnections(t *testing.T) {
	n := newNodeScene(t, limits(Limits{Connections: 2, PerAddress: 1}))
	c, err := n.host(n.token(t)).Open(t.Context())
	check(t, err)
	if _, err := n.host(n.token(t)).Open(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Error(err)
	}
	n.works(t) // another address
	check(t, c.Close())
	for err := io.EOF; err != nil; {
		var again io.ReadWriteCloser
		if again, err = n.host(n.token(t)).Open(t.Context()); err == nil {
			check(t, again.Close())
		} else if turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Fatal(err)
		}
	}
}

// TestSocket serves a unix socket, whose connections are the operator's and have their own number.
func TestSocket(t *testing.T) {
	s := newScene(t, limits(Limits{Connections: 1}))
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(ctx, l, ServeOptions{Context: func(ctx context.Context, c net.Conn) context.Context {
			if _, ok := c.(*net.UnixConn); !ok {
				t.Errorf("the connection is a %T", c)
			}
			return auth.NewContext(ctx, auth.Operator("0"))
		}})
	}()
	s.dial(t) // the network is full
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer tr.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://unix/turnstone.v1.TurnService/GetTurn", strings.NewReader(`{"ticketId":"`+ticket+`"}`))
	check(t, err)
	r.Header.Set("Content-Type", "application/json")
	answer, err := tr.RoundTrip(r)
	check(t, err)
	b, err := io.ReadAll(answer.Body)
	check(t, err)
	_ = answer.Body.Close()
	if answer.StatusCode != 200 || !strings.Contains(string(b), auth.OperatorTenant) {
		t.Errorf("%d %s", answer.StatusCode, b)
	}
	tr.CloseIdleConnections()
	cancel()
	check(t, <-done)
}

// TestReady says whether callers should come.
func TestReady(t *testing.T) {
	var trouble error
	s := newScene(t, func(o *Options, _ *ServeOptions) {
		o.Ready = func(context.Context) error { return trouble }
	})
	for _, want := range []int{200, 503} {
		answer := s.upgrade(t, ReadyPath, "")
		b, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != want || strings.Contains(string(b), "secret") {
			t.Errorf("%d %s", answer.StatusCode, b)
		}
		trouble = turnstone.Errorf("x", turnstone.KindUnavailable, "y", "secret")
	}
}
