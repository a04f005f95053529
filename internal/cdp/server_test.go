package cdp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A backend has sandboxes that are agents in this process.
type backend struct {
	mu     sync.Mutex
	infos  []sandboxes.Info
	agents map[turnstone.SandboxID]func(net.Conn) // each function serves a connection
	specs  []sandboxes.Spec
}

func (b *backend) List(context.Context) ([]sandboxes.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.infos), nil
}

func (b *backend) Get(id turnstone.SandboxID) (sandboxes.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, i := range b.infos {
		if i.ID == id {
			return i, nil
		}
	}
	return sandboxes.Info{}, turnstone.NewError("test", turnstone.KindNotFound, string(id), nil).
		WithHint("look elsewhere")
}

func (b *backend) Dial(_ context.Context, id turnstone.SandboxID) (net.Conn, error) {
	i, err := b.Get(id)
	if err != nil {
		return nil, err
	}
	if i.State.Final() {
		return nil, turnstone.NewError("test", turnstone.KindDead, string(id), errors.New(i.Reason))
	}
	near, far := net.Pipe()
	b.mu.Lock()
	defer b.mu.Unlock()
	go b.agents[id](far)
	return near, nil
}

func (b *backend) Create(_ context.Context, spec sandboxes.Spec,
	_ func(string)) (sandboxes.Info, error) {
	b.mu.Lock()
	b.specs = append(b.specs, spec)
	b.mu.Unlock()
	return b.add(spec.Name, echoAgent), nil
}

func (b *backend) Remove(_ context.Context, id turnstone.SandboxID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.infos = slices.DeleteFunc(b.infos, func(i sandboxes.Info) bool { return i.ID == id })
	return nil
}

func (b *backend) set(id turnstone.SandboxID, state sandboxes.State, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range b.infos {
		if b.infos[n].ID == id {
			b.infos[n].State, b.infos[n].Reason = state, reason
		}
	}
}

func (b *backend) add(name string, agent func(net.Conn)) sandboxes.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := sandboxes.Info{ID: turnstone.NewSandboxID(), Name: name, Image: "base",
		State: sandboxes.StateReady}
	b.infos = append(b.infos, i)
	if b.agents == nil {
		b.agents = map[turnstone.SandboxID]func(net.Conn){}
	}
	b.agents[i.ID] = agent
	return i
}

// echoAgent answers State.getSession, and copies the stream of FileSystem.write to the stream of
// the next FileSystem.read.
func echoAgent(c net.Conn) {
	d := wire.NewDispatcher()
	wire.RegisterState(d, stateServer{})
	wire.RegisterFileSystem(d, &fileServer{})
	conn := wire.NewConn(c, wire.Options{Dispatcher: d})
	conn.Wait()
}

type stateServer struct{ wire.StateServer }

func (stateServer) GetSession(ctx context.Context,
	c *wire.Conn) (*wire.StateGetSessionResult, error) {
	_ = c.EmitFileSystemChanged(ctx, &wire.FileSystemChangedEvent{WatchID: "w"})
	return &wire.StateGetSessionResult{Cwd: "/<&>", Env: []string{}}, nil
}

type fileServer struct {
	wire.FileSystemServer
	mu   sync.Mutex
	data []byte
}

func (f *fileServer) Write(_ context.Context, c *wire.Conn,
	p *wire.FileSystemWriteParams) (*wire.FileSystemWriteResult, error) {
	r, err := c.Receiver(p.Stream)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = b
	return &wire.FileSystemWriteResult{Size: int64(len(b))}, err
}

func (f *fileServer) Read(_ context.Context, c *wire.Conn,
	p *wire.FileSystemReadParams) (*wire.FileSystemReadResult, error) {
	s, err := c.Sender(p.Stream)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err = s.Write(f.data)
	return &wire.FileSystemReadResult{Size: int64(len(f.data)), Eof: true},
		errors.Join(err, s.Close())
}

// A testServer is a server on its own port.
type testServer struct {
	*Server
	backend *backend
	addr    string
	log     *lockedBuffer
	stop    func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func serve(t *testing.T, change func(*Server)) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b, log := &backend{}, &lockedBuffer{}
	s := NewServer(Options{Backend: b, Token: loopback.NewToken(), Image: "base",
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	s.pollTime = 20 * time.Millisecond
	if change != nil {
		change(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	ts := &testServer{Server: s, backend: b, addr: l.Addr().String(), log: log,
		stop: sync.OnceFunc(func() {
			cancel()
			if err := <-served; err != nil {
				t.Error(err)
			}
			if strings.Contains(log.String(), s.opt.Token) {
				t.Error("the token is in the log")
			}
		})}
	t.Cleanup(ts.stop)
	return ts
}

// open connects a WebSocket to path.
func (s *testServer) open(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, br, _, err := ws.Dial(t.Context(), "ws://"+s.addr+"/"+s.opt.Token+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if br != nil {
		return newPatient(conn, br, time.Minute)
	}
	return conn
}

func (s *testServer) openBrowser(t *testing.T) *client {
	t.Helper()
	c := &client{t: t, conn: s.open(t, browserPath+s.browser)}
	c.f = wire.NewFrames(c.conn, true)
	return c
}

// A client is a WebSocket client that exposes every message.
type client struct {
	t    *testing.T
	conn net.Conn
	f    *wire.Frames
	id   int
	seen []wire.Message
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.f.WriteText([]byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// next returns the next message: text, or a binary frame.
func (c *client) next() (*wire.Message, *wire.Frame, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	text, p, err := c.f.Next(nil)
	if err != nil {
		return nil, nil, err
	}
	if !text {
		f, err := wire.ParseFrame(p)
		return nil, &f, err
	}
	m, err := wire.ParseMessage(p)
	return m, nil, err
}

// call sends a command and returns its answer; earlier events are kept in seen.
func (c *client) call(session, method, params string) *wire.Message {
	c.t.Helper()
	c.id++
	if params == "" {
		params = "{}"
	}
	s := ""
	if session != "" {
		s = fmt.Sprintf(`,"sessionId":%q`, session)
	}
	c.send(fmt.Sprintf(`{"id":%d,"method":%q,"params":%s%s}`, c.id, method, params, s))
	for {
		m, _, err := c.next()
		if err != nil {
			c.t.Fatalf("%s: %v", method, err)
		}
		if m == nil {
			continue
		}
		if m.ID != nil && *m.ID == int64(c.id) {
			if m.SessionID != session {
				c.t.Errorf("%s: the answer is session %q's", method, m.SessionID)
			}
			return m
		}
		c.seen = append(c.seen, *m)
	}
}

// event waits for an event.
func (c *client) event(method string) wire.Message {
	c.t.Helper()
	for {
		for n, m := range c.seen {
			if m.Method == method {
				c.seen = slices.Delete(c.seen, n, n+1)
				return m
			}
		}
		m, _, err := c.next()
		if err != nil {
			c.t.Fatalf("waiting for %s: %v", method, err)
		}
		if m != nil {
			c.seen = append(c.seen, *m)
		}
	}
}

func (c *client) attach(id turnstone.SandboxID) (session string, channel uint32) {
	c.t.Helper()
	m := c.call("", "Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, id))
	var r wire.TargetAttachToTargetResult
	if err := json.Unmarshal(m.Result, &r); err != nil {
		c.t.Fatalf("%s %s: %v", m.Result, m.Error, err)
	}
	return r.SessionID, uint32(r.Channel)
}

// wantClosed reads until the connection is closed, and checks the status and reason.
func (c *client) wantClosed(code int, reason string) {
	c.t.Helper()
	for {
		_, _, err := c.next()
		if err == nil {
			continue
		}
		var closed *wire.ClosedError
		if !errors.As(err, &closed) || closed.Code != code ||
			!strings.Contains(closed.Reason, reason) {
			c.t.Errorf("closed with %v, want %d %q", err, code, reason)
		}
		return
	}
}

// get requests a page with the given headers, "Name: value".
func (s *testServer) get(t *testing.T, method, path string, headers ...string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	host := "Host: " + s.addr
	for _, h := range headers {
		if strings.HasPrefix(h, "Host:") {
			host = ""
		}
	}
	lines := append([]string{method + " " + path + " HTTP/1.1"}, headers...)
	if host != "" {
		lines = append(lines, host)
	}
	_, _ = io.WriteString(conn, strings.Join(append(lines, "Connection: close", "", ""), "\r\n"))
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// TestAdmission is the table of accepted and rejected requests.
func TestAdmission(t *testing.T) {
	s := serve(t, nil)
	_, port, _ := net.SplitHostPort(s.addr)
	token, page := s.opt.Token, "/json/version"
	bearer := "Authorization: Bearer " + token
	for _, tt := range []struct {
		name, path string
		headers    []string
		want       int
	}{
		{"no token", page, nil, 401},
		{"no token, no such page", "/nothing", nil, 401},
		{"no token, the WebSocket", browserPath + s.browser, nil, 401},
		{"wrong token in the path", "/" + strings.Repeat("0", 64) + page, nil, 401},
		{"half a token", "/" + token[:32] + page, nil, 401},
		{"an empty token", page + "?token=", []string{"Authorization: Bearer "}, 401},
		{"wrong bearer", page, []string{"Authorization: Bearer x"}, 401},
		{"basic", page, []string{"Authorization: Basic " + token}, 401},
		{"bearer", page, []string{bearer}, 200},
		{"bearer in small letters", page, []string{"Authorization: bearer " + token}, 200},
		{"query", page + "?token=" + token, nil, 200},
		{"path", "/" + token + page, nil, 200},
		{"path, altered twice", "/" + token + "/" + token + page, nil, 200},
		{"query, escaped", page + url.PathEscape("?token="+token), nil, 200},
		{"no such page", "/" + token + "/nothing", nil, 404},
		{"the token alone", "/" + token, nil, 404},
		{"localhost", page, []string{bearer, "Host: localhost:" + port}, 200},
		{"another loopback address", page, []string{bearer, "Host: 127.0.0.2:" + port}, 200},
		{"IPv6 loopback", page, []string{bearer, "Host: [::1]:" + port}, 200},
		{"a name that was made to point here", page,
			[]string{bearer, "Host: evil.example:" + port}, 403},
		{"a name with an accepted suffix", page,
			[]string{bearer, "Host: localhost.evil.example:" + port}, 403},
		{"another address", page, []string{bearer, "Host: 192.0.2.1:" + port}, 403},
		{"another port", page, []string{bearer, "Host: 127.0.0.1:1"}, 403},
		{"no port", page, []string{bearer, "Host: 127.0.0.1"}, 403},
		{"its own page", page, []string{bearer, "Origin: http://" + s.addr}, 200},
		{"another page", page, []string{bearer, "Origin: https://evil.example"}, 403},
		{"a page without an origin", page, []string{bearer, "Origin: null"}, 403},
		{"another server of this machine", page,
			[]string{bearer, "Origin: http://127.0.0.1:1"}, 403},
		{"two origins", page, []string{bearer, "Origin: http://" + s.addr,
			"Origin: http://evil.example"}, 403},
		{"a page's WebSocket", "/" + token + browserPath + s.browser,
			[]string{"Origin: http://evil.example", "Upgrade: websocket",
				"Connection: Upgrade", "Sec-WebSocket-Version: 13",
				"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, body := s.get(t, "GET", tt.path, tt.headers...)
			if got != tt.want {
				t.Errorf("%d %s, want %d", got, body, tt.want)
			}
			if got != 200 && (strings.Contains(body, token) || strings.Contains(body, s.browser)) {
				t.Errorf("it tells too much: %s", body)
			}
		})
	}
	if got, _ := s.get(t, "POST", page, bearer); got != 405 {
		t.Errorf("POST: %d", got)
	}
	if got, _ := s.get(t, "GET", "/"+strings.Repeat("x", 1<<16), bearer); got != 431 {
		t.Errorf("a very long path: %d", got)
	}
}

func TestPages(t *testing.T) {
	s := serve(t, nil)
	a := s.backend.add("one", echoAgent)
	b := s.backend.add("two", echoAgent)
	s.backend.set(b.ID, sandboxes.StateFailed, "it died")
	_, body := s.get(t, "GET", "/"+s.opt.Token+"/json/list")
	var pages []page
	if err := json.Unmarshal([]byte(body), &pages); err != nil || len(pages) != 2 {
		t.Fatalf("%s: %v", body, err)
	}
	if p := pages[0]; p.ID != string(a.ID) || p.Title != "one" ||
		p.Socket != "ws://"+s.addr+"/"+s.opt.Token+"/devtools/page/"+p.ID {
		t.Errorf("%+v", p)
	}
	if p := pages[1]; p.Socket != "" || p.State != sandboxes.StateFailed ||
		p.Description != "it died" {
		t.Errorf("%+v", p)
	}
	if _, again := s.get(t, "GET", "/"+s.opt.Token+"/json"); again != body {
		t.Errorf("/json differs from /json/list: %s", again)
	}
	_, body = s.get(t, "GET", "/"+s.opt.Token+"/json/protocol")
	if body != string(wire.Descriptor()) {
		t.Error("the descriptor is another one")
	}
	_, body = s.get(t, "GET", "/"+s.opt.Token+"/json/version")
	if !strings.Contains(body, "ws://"+s.addr+"/"+s.opt.Token+"/devtools/browser/"+s.browser) ||
		!strings.Contains(body, `"turnstone/`) {
		t.Error(body)
	}
	for id, want := range map[turnstone.SandboxID]int{"sb_none": 404, b.ID: 410} {
		if got, body := s.get(t, "GET", "/"+s.opt.Token+pagePath+string(id)); got != want {
			t.Errorf("%s: %d %s", id, got, body)
		}
	}
}

// TestPage: a connection to a sandbox is a connection of the wire.
func TestPage(t *testing.T) {
	s := serve(t, nil)
	a := s.backend.add("one", echoAgent)
	events := make(chan wire.Event, 10)
	c := wire.NewConn(s.open(t, pagePath+string(a.ID)),
		wire.Options{Masked: true, OnEvent: func(e wire.Event) { events <- e }})
	defer func() { _ = c.Close() }()
	res, err := c.StateGetSession(t.Context())
	if err != nil || res.Cwd != "/<&>" {
		t.Fatalf("%+v, %v", res, err)
	}
	if e := <-events; e.Method != wire.EventFileSystemChanged {
		t.Errorf("%+v", e)
	}
	data := bytes.Repeat([]byte("0123456789"), 1<<18)
	id := c.NewStream()
	w, err := c.Sender(id)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = w.Write(data)
		_ = w.Close()
	}()
	if _, err := c.FileSystemWrite(t.Context(),
		&wire.FileSystemWriteParams{Path: "/f", Stream: id}); err != nil {
		t.Fatal(err)
	}
	id = c.NewStream()
	r, err := c.Receiver(id)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = c.FileSystemRead(t.Context(),
			&wire.FileSystemReadParams{Path: "/f", Stream: id})
	}()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
}
