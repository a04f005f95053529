package plain_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/node/plain"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/sandboxes/access"
)

// box is the sandboxes of the tenant t1: one, whose agent is on this machine.
type box struct {
	*access.Access
	id turnstone.SandboxID
}

func newBox(t *testing.T) *box {
	t.Helper()
	a, err := agent.New(agent.Options{RunDir: t.TempDir(), Cwd: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return &box{id: turnstone.NewSandboxID(), Access: &access.Access{
		Open: func(context.Context, turnstone.SandboxID) (io.ReadWriteCloser, error) {
			near, far := net.Pipe()
			a.ServeConn(far)
			return near, nil
		},
		Info: func(context.Context, turnstone.SandboxID) (access.Sandbox, error) {
			return access.Sandbox{}, nil
		}}}
}

func (b *box) Get(id turnstone.SandboxID) (sandboxes.Info, error) {
	if id != b.id {
		return sandboxes.Info{}, turnstone.Errorf("sandbox.find", turnstone.KindNotFound,
			"sandbox "+string(id), "no such sandbox")
	}
	return sandboxes.Info{ID: id, Image: "base"}, nil
}

// runner runs no turn.
type runner struct {
	ran   []executor.Request
	began chan struct{} // with end: closed when a turn runs; nil: it ends at once
	end   chan struct{}
}

func (r *runner) Run(_ context.Context, q executor.Request, _ executor.Observer) (
	*turnstone.TurnReport, error) {
	r.ran = append(r.ran, q)
	if r.began != nil {
		close(r.began)
		<-r.end
	}
	return &turnstone.TurnReport{Result: turnstone.ResultFailed, Receipt: "the receipt\n"}, nil
}

// tokens are the callers by their tokens.
type tokens map[string]auth.Principal

func (m tokens) Verify(_ context.Context, token string) (auth.Principal, error) {
	if p, ok := m[token]; ok {
		return p, nil
	}
	_, err := auth.Bearer(http.Header{}) // an error with a reason
	return auth.Principal{}, err
}

type scene struct {
	*box
	*runner
	service *plain.Service
	url     string
	owned   turnstone.SandboxID // by a client key
}

func newScene(t *testing.T, allow string) *scene {
	t.Helper()
	s := &scene{box: newBox(t), runner: &runner{}}
	p := func(tenant string, sandbox turnstone.SandboxID, scopes ...auth.Scope) auth.Principal {
		return auth.Principal{Issuer: "test", Tenant: tenant, Subject: "s", Scopes: scopes,
			Sessions: []auth.Pattern{auth.Any}, Templates: []auth.Pattern{"base"}, Sandbox: sandbox}
	}
	service := plain.New(plain.Options{Allow: allow, Verifier: tokens{
		"good":  p("t1", "", auth.SandboxesConnect, auth.TurnsRun),
		"own":   p("t1", s.id, auth.SandboxesConnect),
		"other": p("t1", turnstone.NewSandboxID(), auth.SandboxesConnect),
		"weak":  p("t1", "", auth.SandboxesRead, auth.TurnsRead),
		"alien": p("t2", "", auth.SandboxesConnect, auth.TurnsRun),
	}, Tenant: func(_ context.Context, name string) (plain.Tenant, error) {
		if name != "t1" {
			return plain.Tenant{}, turnstone.Errorf("tenant.open", turnstone.KindNotFound, "",
				"there is no such object")
		}
		return plain.Tenant{Sandboxes: s.box, Runner: s.runner,
			Open: func(id turnstone.SandboxID, _ bool) (bool, error) { return id != s.owned, nil }}, nil
	}})
	h := httptest.NewServer(service.Handler())
	t.Cleanup(h.Close)
	s.url, s.service = h.URL, service
	return s
}

// post makes a request, and returns its status and body.
func (s *scene) post(t *testing.T, token, path, kind, body string, headers ...string) (int, string,
	http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", kind)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(b), a.Header
}

func (s *scene) exec(t *testing.T, token, body string, headers ...string) (int, string) {
	t.Helper()
	status, text, _ := s.post(t, token, "/turnstone/v1/plain/sandboxes/"+string(s.id)+"/exec",
		"application/json", body, headers...)
	return status, text
}

func TestExec(t *testing.T) {
	s := newScene(t, config.PlaintextLoopback)
	for name, tt := range map[string]struct {
		body string
		want map[string]any
	}{
		"a command": {`{"command":["sh","-c","echo out; echo err >&2; exit 3"]}`,
			map[string]any{"exit_code": 3.0, "stdout": "out\n", "stderr": "err\n"}},
		"a script": {`{"script":"read a; echo $a $B","stdin":"x\n","env":{"B":"y=z"}}`,
			map[string]any{"exit_code": 0.0, "stdout": "x y=z\n"}},
		"bytes": {`{"script":"printf '\\377\\000'"}`,
			map[string]any{"stdout": "", "stdout_base64": "/wA=", "stdout_truncated": false}},
		"too long": {`{"script":"echo begun; sleep 100","timeout":0.3}`,
			map[string]any{"timed_out": true, "stdout": "begun\n"}},
		"a signal": {`{"script":"kill -TERM $$"}`,
			map[string]any{"exit_code": 143.0, "signal": "SIGTERM"}},
	} {
		status, text := s.exec(t, "good", tt.body)
		var got map[string]any
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d %s %v", name, status, text, err)
			continue
		}
		for key, want := range tt.want {
			if got[key] != want {
				t.Errorf("%s: %s is %v, not %v", name, key, got[key], want)
			}
		}
	}
	status, text := s.exec(t, "own", `{"script":"yes é | head -c 3000000"}`)
	var got struct {
		Stdout          string
		StdoutTruncated bool `json:"stdout_truncated"`
		StdoutBase64    string
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK ||
		!got.StdoutTruncated || len(got.Stdout) < 1<<20-4 || len(got.Stdout) > 1<<20 ||
		got.StdoutBase64 != "" {
		t.Errorf("%d, %d bytes, %t %v", status, len(got.Stdout), got.StdoutTruncated, err)
	}
}

func TestRefusedExec(t *testing.T) {
	s := newScene(t, config.PlaintextLoopback)
	const good = `{"command":["true"]}`
	for name, tt := range map[string]struct {
		token, body string
		status      int
	}{
		"no token":              {"", good, 401},
		"an unknown token":      {"forged", good, 401},
		"no scope":              {"weak", good, 403},
		"another tenant":        {"alien", good, 404},
		"another sandbox's":     {"other", good, 403},
		"no command":            {"good", `{}`, 400},
		"two commands":          {"good", `{"command":["a"],"script":"b"}`, 400},
		"an unknown field":      {"good", `{"command":["a"],"comand":1}`, 400},
		"two values":            {"good", good + good, 400},
		"a zero byte":           {"good", `{"command":["a\u0000"]}`, 400},
		"a variable":            {"good", `{"command":["a"],"env":{"A=B":"c"}}`, 400},
		"a negative time":       {"good", `{"command":["a"],"timeout":-1}`, 400},
		"a very long time":      {"good", `{"command":["a"],"timeout":1e300}`, 400},
		"no JSON":               {"good", `{"command":`, 400},
		"a large body":          {"good", `{"script":"` + strings.Repeat("x", 3<<20) + `"}`, 400},
		"a program that is not": {"good", `{"command":["no-such-program"]}`, 400},
	} {
		status, text := s.exec(t, tt.token, tt.body)
		if status != tt.status || !json.Valid([]byte(text)) || strings.Contains(text, "forged") {
			t.Errorf("%s: %d %.300s", name, status, text)
		}
	}
	s.owned = s.id
	if status, text := s.exec(t, "good", good); status != 403 ||
		!strings.Contains(text, "belongs to a client key") {
		t.Errorf("a client's own sandbox: %d %s", status, text)
	}
	if status, text := s.exec(t, "alien", good); status != 404 {
		t.Errorf("another tenant's: %d %s", status, text)
	}
	unknown := "/turnstone/v1/plain/sandboxes/" + string(turnstone.NewSandboxID()) + "/exec"
	_, missing, _ := s.post(t, "good", unknown, "application/json", good)
	_, alien, _ := s.post(t, "alien", unknown, "application/json", good)
	if missing != alien || !strings.Contains(missing, "not_found") {
		t.Errorf("a tenant learns whether a sandbox exists: %s, %s", missing, alien)
	}
	if status, text, _ := s.post(t, "good", unknown, "text/plain", good); status != 400 {
		t.Errorf("another content type: %d %s", status, text)
	}
	for _, path := range []string{"/turnstone/v1/plain/", "/turnstone/v1/plain/sandboxes/x"} {
		if status, text, _ := s.post(t, "good", path, "application/json", good); status != 404 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// TestAllowed checks the node's own setting: also a good token does not replace it.
func TestAllowed(t *testing.T) {
	const body = `{"command":["true"]}`
	for _, tt := range []struct {
		allow  string
		from   string
		header string
		socket bool
		want   int
		host   string // none: localhost:7420
		change func(*http.Request)
	}{
		{config.PlaintextOff, "127.0.0.1:1", "", false, 403, "", nil},
		{config.PlaintextOff, "@", "", true, 403, "", nil},
		{"", "127.0.0.1:1", "", false, 403, "", nil},
		{config.PlaintextLoopback, "127.0.0.1:1", "", false, 200, "", nil},
		{config.PlaintextLoopback, "[::1]:1", "", false, 200, "", nil},
		{config.PlaintextLoopback, "@", "", true, 200, "", nil},
		{config.PlaintextLoopback, "@", "", false, 403, "", nil},
		{config.PlaintextLoopback, "192.0.2.1:1", "", false, 403, "", nil},
		{config.PlaintextLoopback, "127.0.0.1:1", "X-Forwarded-For", false, 403, "", nil},
		{config.PlaintextLoopback, "127.0.0.1:1", "Forwarded", false, 403, "", nil},
		{config.PlaintextOn, "192.0.2.1:1", "X-Forwarded-For", false, 200, "", nil},
		{config.PlaintextLoopback, "127.0.0.1:1", "x-forwarded-anything", false, 403, "", nil},
		{config.PlaintextLoopback, "127.0.0.1:1", "CF-Connecting-IP", false, 403, "", nil},
		{config.PlaintextLoopback, "127.0.0.1:1", "Origin", false, 403, "", nil},
		{config.PlaintextLoopback, "@", "Origin", true, 403, "", nil},
		{config.PlaintextLoopback, "127.0.0.1:1", "X-Request-Id", false, 200, "", nil},
		{allow: config.PlaintextLoopback, from: "127.0.0.1:1", host: "127.8.8.8:1", want: 200},
		{allow: config.PlaintextLoopback, from: "127.0.0.1:1", host: "[::1]:1", want: 200},
		{allow: config.PlaintextLoopback, from: "127.0.0.1:1", host: "LOCALHOST", want: 200},
		{allow: config.PlaintextLoopback, from: "127.0.0.1:1", host: "evil.example:7420", want: 403},
		{allow: config.PlaintextLoopback, from: "127.0.0.1:1", host: "localhost.evil.example",
			want: 403},
		{allow: config.PlaintextLoopback, from: "@", host: "server", socket: true, want: 200},
		{allow: config.PlaintextOn, from: "192.0.2.1:1", host: "turn.example.org", want: 200},
		{allow: config.PlaintextLoopback, from: "127.0.0.1:1", host: "turn.example.org", want: 200,
			change: func(r *http.Request) { r.TLS = new(tls.ConnectionState) }},
		{allow: config.PlaintextLoopback, from: "127.0.0.1:1", want: 403, // as some proxies do
			change: func(r *http.Request) { r.ProtoMinor = 0 }},
	} {
		b := newBox(t)
		p := auth.Principal{Issuer: "test", TokenID: "1", Tenant: auth.OperatorTenant,
			Templates: []auth.Pattern{auth.Any}, Scopes: []auth.Scope{auth.SandboxesConnect}}
		s := plain.New(plain.Options{Allow: tt.allow, Verifier: tokens{"good": p},
			Tenant: func(context.Context, string) (plain.Tenant, error) {
				return plain.Tenant{Sandboxes: b,
					Open: func(turnstone.SandboxID, bool) (bool, error) { return true, nil }}, nil
			}})
		r := httptest.NewRequest(http.MethodPost,
			"/turnstone/v1/plain/sandboxes/"+string(b.id)+"/exec", strings.NewReader(body))
		r.RemoteAddr, r.Host = tt.from, cmp.Or(tt.host, "localhost:7420")
		if tt.change != nil {
			tt.change(r)
		}
		ctx := context.WithValue(r.Context(), http.LocalAddrContextKey,
			net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2}))
		if tt.socket {
			ctx = auth.NewContext(ctx, auth.Operator("0"))
		} else if tt.from == "@" { // the gateway has verified a token: that is no operator's socket
			ctx = auth.NewContext(ctx, p)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer good")
		if tt.header != "" {
			r.Header.Set(tt.header, "192.0.2.1")
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r.WithContext(ctx))
		if w.Code != tt.want {
			t.Errorf("%s from %s to %q with %q: %d %s", tt.allow, tt.from, tt.host, tt.header,
				w.Code, w.Body)
		}
	}
}

// TestCallerLeaves ends the command of a caller who leaves.
func TestCallerLeaves(t *testing.T) {
	s := newScene(t, config.PlaintextOn)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost,
		s.url+"/turnstone/v1/plain/sandboxes/"+string(s.id)+"/exec",
		bytes.NewReader([]byte(`{"command":["sleep","1000"]}`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer good")
	done := make(chan error, 1)
	go func() {
		a, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = a.Body.Close()
		}
		done <- err
	}()
	running := func() (started, ended bool) {
		all, err := s.Processes(t.Context(), s.id)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			started, ended = true, p.Exit != nil
		}
		return started, ended
	}
	for started := false; !started; {
		started, _ = running()
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("the request did not end")
	}
	for ended := false; !ended; {
		_, ended = running()
	}
}

func TestRun(t *testing.T) {
	s := newScene(t, config.PlaintextLoopback)
	const path, doc = "/turnstone/v1/plain/run", "```bash\nfalse\n```\n"
	status, text, h := s.post(t, "good", path, "text/markdown", doc)
	if status != 200 || text != "the receipt\n" || h.Get(plain.ResultHeader) != "failed" ||
		!strings.HasPrefix(h.Get("Content-Type"), "text/markdown") {
		t.Errorf("%d %q %v", status, text, h)
	}
	if len(s.ran) != 1 || string(s.ran[0].Document.Source) != doc || !s.ran[0].Piped {
		t.Fatalf("%+v", s.ran)
	}
	for name, tt := range map[string]struct {
		token, body string
		status      int
	}{
		"no token":         {"", doc, 401},
		"no scope":         {"weak", doc, 403},
		"another template": {"good", "---\nimage: python\n---\n" + doc, 403},
		"a session":        {"good", "---\nsession: research\n---\n" + doc, 400},
		"files":            {"good", "---\nfiles: [/etc/passwd]\n---\n" + doc, 400},
		"no document":      {"good", "---\nimage: [\n---\n", 400},
		"a large document": {"good", strings.Repeat("x", 2<<20), 400},
	} {
		status, text, _ := s.post(t, tt.token, path, "text/markdown", tt.body)
		if status != tt.status || len(s.ran) != 1 {
			t.Errorf("%s: %d %.300s", name, status, text)
		}
	}
}

// TestDrain waits for a turn that runs, and for as long as the context permits.
func TestDrain(t *testing.T) {
	s := newScene(t, config.PlaintextLoopback)
	s.began, s.end = make(chan struct{}), make(chan struct{})
	answered := make(chan string, 1)
	go func() {
		_, text, _ := s.post(t, "good", "/turnstone/v1/plain/run", "text/markdown", "```bash\ntrue\n```\n")
		answered <- text
	}()
	<-s.began
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if err := s.service.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a turn runs: %v", err)
	}
	close(s.end)
	if err := s.service.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-answered; got != "the receipt\n" {
		t.Errorf("the answer is %q", got)
	}
}
