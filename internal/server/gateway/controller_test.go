package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/fixedport"
	"turnstone.dev/turnstone/internal/server/auth"
)

// A remoteController is a controller behind a connection, which can vanish and return.
type remoteController struct {
	t       testing.TB
	handler http.Handler
	at      string

	mu     sync.Mutex
	server *http.Server
	seen   http.Header // of the last request
}

func newController(t testing.TB) *remoteController {
	c := &remoteController{t: t}
	l, err := fixedport.Listen(t.Context(), "127.0.0.1")
	check(t, err)
	c.at = l.Addr().String()
	c.start(l)
	t.Cleanup(c.vanish)
	return c
}

func (c *remoteController) start(l net.Listener) {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: &p, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.mu.Lock()
			c.seen = r.Header.Clone()
			h := c.handler
			c.mu.Unlock()
			h.ServeHTTP(w, r)
		})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = s
	go func() { _ = s.Serve(l) }()
}

// vanish ends it as a crash does.
func (c *remoteController) vanish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.server.Close()
}

func (c *remoteController) back() {
	l, err := net.Listen("tcp", c.at)
	check(c.t, err)
	c.start(l)
}

func (c *remoteController) transport() *http.Transport {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	t := &http.Transport{Protocols: &p}
	c.t.Cleanup(t.CloseIdleConnections)
	return t
}

func (c *remoteController) base() *url.URL { return &url.URL{Scheme: "http", Host: c.at} }

// apart makes a scene whose controller verifies tokens itself, in another process.
func apart(t testing.TB, changes ...change) (*scene, *remoteController) {
	c := newController(t)
	s := newScene(t, append(changes, func(o *Options, _ *ServeOptions) {
		inner, verifier := o.Control, o.Verifier
		c.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token, err := auth.Bearer(r.Header)
			if err == nil {
				var p auth.Principal
				p, err = verifier.Verify(r.Context(), token)
				r = r.WithContext(auth.NewContext(r.Context(), p))
			}
			if err != nil {
				http.Error(w, "the controller got no token", http.StatusTeapot)
				return
			}
			inner.ServeHTTP(w, r)
		})
		o.Control = Controller(c.base(), c.transport(), o.Log)
	})...)
	return s, c
}

// TestForwarding passes calls and streams of all protocols on to a controller in another process.
func TestForwarding(t *testing.T) {
	s, _ := apart(t)
	for name, p := range protocols {
		t.Run(name, func(t *testing.T) {
			c := s.client(t, s.token(t), p.two, p.options...)
			check(t, get(t.Context(), c))
			stream := watching(t, c) // its first message comes before its end
			check(t, stream.Close())
			_, err := c.GetTurn(t.Context(), connect.NewRequest(&v1.GetTurnRequest{TicketId: "x"}))
			e, ok := api.FromConnect(err).(*api.Status)
			if !ok || e.Code != connect.CodeInvalidArgument || len(e.Violations) != 1 {
				t.Errorf("the controller's error is %v", err)
			}
		})
	}
}

// TestForwardedHeaders removes the fields of the caller's connection, and no others.
func TestForwardedHeaders(t *testing.T) {
	s, c := apart(t)
	conn := s.dial(t)
	token := s.token(t)
	_, err := io.WriteString(conn, "POST /turnstone.v1.TurnService/GetTurn HTTP/1.1\r\nHost: x\r\n"+
		"Content-Type: application/json\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 2\r\n"+
		"Connection: X-Hop, Upgrade, close\r\nX-Hop: 1\r\nUpgrade: websocket\r\nKeep-Alive: 5\r\n"+
		"Proxy-Authorization: x\r\nCookie: a=b\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=x\r\n"+
		"Connect-Timeout-Ms: 5000\r\n\r\n{}")
	check(t, err)
	all, err := io.ReadAll(conn)
	check(t, err)
	if !bytes.Contains(all, []byte("invalid_argument")) {
		t.Errorf("%s", all)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range []string{"Connection", "X-Hop", "Upgrade", "Keep-Alive", "Proxy-Authorization",
		"Cookie", "X-Forwarded-For", "Forwarded"} {
		if c.seen.Get(k) != "" {
			t.Errorf("%s: %s", k, c.seen.Get(k))
		}
	}
	if c.seen.Get("Authorization") != "Bearer "+token || c.seen.Get("Connect-Timeout-Ms") != "5000" {
		t.Errorf("%v", c.seen)
	}
}

// TestControllerVanishes answers calls and ends streams as unavailable, which a client may retry,
// and continues when the controller is back.
func TestControllerVanishes(t *testing.T) {
	s, c := apart(t)
	for name, p := range protocols {
		t.Run(name, func(t *testing.T) {
			client := s.client(t, s.token(t), p.two, p.options...)
			stream := watching(t, client)
			c.vanish()
			unavailable(t, ended(stream))
			unavailable(t, get(t.Context(), client))
			c.back()
			s.works(t)
			check(t, get(t.Context(), client))
		})
	}
}

func unavailable(t *testing.T, err error) {
	t.Helper()
	e, ok := api.FromConnect(err).(*api.Status)
	if !ok || e.Code != connect.CodeUnavailable || !api.Retryable(e) ||
		!strings.Contains(e.Error(), "the controller") {
		t.Errorf("%v", err)
	}
}

// TestForwardedEnds ends the streams of a revoked token in their protocol.
func TestForwardedEnds(t *testing.T) {
	s, _ := apart(t, limits(Limits{Recheck: time.Millisecond}))
	for name, p := range protocols {
		t.Run(name, func(t *testing.T) {
			token := s.issue(t, s.claims())
			stream := watching(t, s.client(t, token.Token.Reveal(), p.two, p.options...))
			check(t, s.publisher.Revoke(t.Context(), auth.Revocation{Issuer: serverName,
				TokenID: token.ID, Until: token.Expires}))
			refusedAs(t, ended(stream), connect.CodeUnauthenticated, "revoked")
		})
	}
}

// TestForwardedBodies: a request that is too large, slow or cut off is the caller's fault.
func TestForwardedBodies(t *testing.T) {
	s, _ := apart(t, limits(Limits{Request: 64 << 10, Body: 2 * time.Second}))
	head := "POST /turnstone.v1.TurnService/GetTurn HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
		"Content-Type: application/json\r\nAuthorization: Bearer " + s.token(t) + "\r\n"
	for text, want := range map[string]string{
		head + "Content-Length: 100000\r\n\r\n{": "resource_exhausted",
		head + "Transfer-Encoding: chunked\r\n\r\n20000\r\n" + strings.Repeat(" ", 0x20000) +
			"\r\n0\r\n\r\n": "resource_exhausted",
		head + "Content-Length: 100\r\n\r\n{": "deadline_exceeded",
		head + "Content-Length: 90\r\n\r\n{":  "is cut off",
	} {
		conn := s.dial(t)
		_, err := io.WriteString(conn, text)
		check(t, err)
		if want == "is cut off" {
			check(t, conn.(*net.TCPConn).CloseWrite())
		}
		all, _ := io.ReadAll(conn)
		if !bytes.Contains(all, []byte(want)) {
			t.Errorf("%.120s: %s", text, all)
		}
		s.works(t)
	}
}

// A lastRead is a body whose read cancels its request before it fails, as one of net/http does.
type lastRead struct {
	cancel func()
	err    error
}

func (l lastRead) Read([]byte) (int, error) {
	l.cancel()
	time.Sleep(50 * time.Millisecond) //wait: whoever does not wait for the read answers meanwhile
	return 0, l.err
}

func (l lastRead) Close() error { return nil }

// TestCanceledByItsBody: a body that cannot be read is the reason for a request's end, although the
// request ends first.
func TestCanceledByItsBody(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind turnstone.Kind
		want string
	}{
		{os.ErrDeadlineExceeded, turnstone.KindTimeout, "did not arrive within 1s"},
		{io.ErrUnexpectedEOF, turnstone.KindInvalid, "is cut off"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		b := &body{ReadCloser: lastRead{cancel, c.err}, limit: time.Second}
		ctx = context.WithValue(ctx, bodyKey{}, b)
		read := make(chan struct{})
		go func() { defer close(read); _, _ = b.Read(nil) }()
		<-ctx.Done()
		err := controllerError(ctx, ctx.Err(), slog.New(slog.DiscardHandler))
		if turnstone.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.err, err)
		}
		<-read
	}
}

// TestPlace: a stream of messages is followed however its bytes are split.
func TestPlace(t *testing.T) {
	stream := append([]byte{0, 0, 0, 0, 3, 'a', 'b', 'c', 2, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		make([]byte, 256)...)
	ends := map[int]bool{0: true, 8: true, 13: true, len(stream): true}
	for step := 1; step <= len(stream); step++ {
		var p place
		for at := 0; at < len(stream); {
			if p.within() == ends[at] {
				t.Fatalf("step %d: at %d within is %v", step, at, p.within())
			}
			n := min(step, len(stream)-at)
			p.pass(stream[at : at+n])
			at += n
		}
		if p.within() {
			t.Fatalf("step %d: within at the end", step)
		}
	}
}

// A script is what a controller sends to the followers that connect one after the other.
type script struct {
	connectv1.UnimplementedControllerServiceHandler
	turns chan func(*connect.ServerStream[v1.WatchAuthorityResponse]) error
	calls atomic.Int32
}

func (s *script) WatchAuthority(ctx context.Context, _ *connect.Request[v1.WatchAuthorityRequest],
	out *connect.ServerStream[v1.WatchAuthorityResponse]) error {
	s.calls.Add(1)
	defer s.calls.Add(-1)
	select {
	case f := <-s.turns:
		return f(out)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestFollow keeps a verifier informed through all that a controller may do.
func TestFollow(t *testing.T) {
	a := newAuthority(t)
	verifier, err := auth.NewVerifier(auth.VerifierConfig{Name: serverName, Clock: a.clock})
	check(t, err)
	defer func() { check(t, verifier.Close()) }()
	said := make(chan string, 100)
	c := newController(t)
	s := &script{turns: make(chan func(*connect.ServerStream[v1.WatchAuthorityResponse]) error)}
	_, c.handler = connectv1.NewControllerServiceHandler(s, serve.HandlerOptions(nil)...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	client := connectv1.NewControllerServiceClient(&http.Client{Transport: c.transport()},
		"http://"+c.at, api.ClientOptions()...)
	go func() {
		defer close(done)
		followAll(ctx, retries{time.Millisecond, 10 * time.Millisecond}, slog.New(slog.DiscardHandler),
			func(heard func()) error {
				// it must not give up between two turns: the next turn would be that of a stream without a reader
				return follow(ctx, client, noting{verifier, said}, time.Hour, heard)
			})
	}()
	defer func() { cancel(); <-done }()
	bulletin := func(number uint64) []byte {
		b, err := auth.Bulletin{Number: number, Keys: a.issuer.Keys()}.Encode()
		check(t, err)
		return b
	}
	send := func(out *connect.ServerStream[v1.WatchAuthorityResponse], number uint64, part []byte,
		last bool) {
		_ = out.Send(&v1.WatchAuthorityResponse{Number: number, Part: part, Last: last})
	}
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			if got := <-said; got != w {
				t.Fatalf("%s, want %s", got, w)
			}
		}
	}
	hold := make(chan struct{})
	type stream = *connect.ServerStream[v1.WatchAuthorityResponse]
	s.turns <- func(out stream) error { // in two parts, then a confirmation, then the end
		b := bulletin(5)
		send(out, 5, b[:10], false)
		send(out, 5, b[10:], true)
		send(out, 5, nil, false)
		return nil
	}
	expect("update 5", "confirm 5")
	_, err = verifier.Verify(t.Context(), a.token(t))
	check(t, err)
	for name, bad := range map[string]func(stream){
		"confirms what did not come": func(out stream) { send(out, 9, nil, false) },
		"parts of two":               func(out stream) { send(out, 6, bulletin(6)[:9], false); send(out, 7, bulletin(7), true) },
		"confirms in the middle":     func(out stream) { send(out, 6, bulletin(6)[:9], false); send(out, 6, nil, false) },
		"another number":             func(out stream) { send(out, 7, bulletin(6), true) },
		"malformed":                  func(out stream) { send(out, 6, []byte("{"), true) },
		"an empty one":               func(out stream) { send(out, 6, nil, true) },
		"takes a revocation back":    func(out stream) { send(out, 4, bulletin(4), true) },
		"without end": func(out stream) {
			for out.Send(&v1.WatchAuthorityResponse{Number: 6, Part: make([]byte, 1<<20)}) == nil {
			}
		},
	} {
		s.turns <- func(out stream) error {
			bad(out)
			if name != "without end" {
				<-hold // the follower ends it, and connects again
			}
			return nil
		}
		switch name {
		case "takes a revocation back":
			expect("update 4")
		case "confirms what did not come":
			expect("confirm 9")
		}
	}
	close(hold)
	s.turns <- func(out stream) error { send(out, 8, bulletin(8), true); return nil }
	expect("update 8")
	c.vanish()
	for s.calls.Load() > 0 { // no stream of before takes the next turn
		time.Sleep(time.Millisecond)
	}
	c.back()
	s.turns <- func(out stream) error { send(out, 8, bulletin(8), true); return nil }
	expect("update 8")
	err = follow(ctx, client, noting{verifier, said}, 50*time.Millisecond, func() {})
	if turnstone.KindOf(err) != turnstone.KindTimeout || !strings.Contains(err.Error(), "says nothing for") {
		t.Errorf("a silent controller: %v", err)
	}
}

// noting says what a follower is told.
type noting struct {
	auth.Follower
	said chan string
}

func (n noting) Update(b auth.Bulletin) error {
	n.said <- "update " + strconv.FormatUint(b.Number, 10)
	return n.Follower.Update(b)
}

func (n noting) Confirm(number uint64) error {
	n.said <- "confirm " + strconv.FormatUint(number, 10)
	return n.Follower.Confirm(number)
}
