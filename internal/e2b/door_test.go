package e2b_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/e2b"
	"turnstone.dev/turnstone/internal/e2b/pass"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/sandboxes"
)

// world is a control API and a node, whose sandboxes have one agent on this machine.
type world struct {
	connectv1.UnimplementedSandboxServiceHandler
	agent *agent.Agent
	node  channel.KeyPair
	key   *pass.Key

	often atomic.Bool // addresses come too often

	mu      sync.Mutex
	all     []*v1.Sandbox // newest first
	tenants map[string]string
	proved  int // calls with a good proof
	limits  map[string]time.Duration
	conns   []net.Conn // to the agent
	looks   chan string
	refuse  func(id string) error // refuses connections to the agent; nil: nobody does
}

func (g *world) Name() string                  { return "n1" }
func (g *world) ChannelKey() channel.PublicKey { return g.node.Public }

func (g *world) IDs(context.Context) (ids []turnstone.SandboxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.all {
		ids = append(ids, turnstone.SandboxID(s.SandboxId))
	}
	return ids
}

// arrive refuses while addresses come too often.
func (g *world) arrive(*http.Request) error {
	if !g.often.Load() {
		return nil
	}
	return &api.Status{RetryAfter: 1500 * time.Millisecond, Err: turnstone.Errorf("gateway.rate",
		turnstone.KindExhausted, "the address", "comes too often")}
}

func (g *world) Find(id turnstone.SandboxID, owner func(string) (channel.PublicKey, error)) (e2b.Found, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case g.looks <- string(id):
	default:
	}
	for _, s := range g.all {
		if s.SandboxId != string(id) || s.Metadata["owner"] == "other" {
			continue
		}
		open := func(context.Context) (io.ReadWriteCloser, error) {
			g.mu.Lock()
			refuse := g.refuse
			g.mu.Unlock()
			if refuse != nil {
				return nil, refuse(string(id))
			}
			near, far := net.Pipe()
			g.agent.ServeConn(far)
			g.mu.Lock()
			defer g.mu.Unlock()
			g.conns = append(g.conns, near)
			return near, nil
		}
		return e2b.Found{Tenant: g.tenants[s.SandboxId], Open: open,
			Info: sandboxes.Info{ID: id, State: sandboxes.StateReady, Paused: s.Paused, Workdir: "/tmp"}}, nil
	}
	return e2b.Found{}, turnstone.Errorf("e2b.find", turnstone.KindNotFound, string(id), "was not found")
}

// see returns the principal of a call, and whether the call proves the door's key.
func (g *world) see(ctx context.Context, c *v1.ChannelClient, claim turnstone.Digest) auth.Principal {
	p, _ := auth.FromContext(ctx)
	pair, err := g.key.Client(p.Tenant)
	if err == nil && c != nil && len(c.Proofs) == 1 && c.Proofs[0].Node == "n1" {
		got, err := channel.OpenProof(g.node, c.Proofs[0].Message, channel.Claim{Tenant: p.Tenant, Request: claim})
		if err == nil && got.Client == pair.Public {
			g.proved++
		}
	}
	return p
}

func (g *world) CreateSandbox(ctx context.Context, r *connect.Request[v1.CreateSandboxRequest]) (
	*connect.Response[v1.CreateSandboxResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.see(ctx, r.Msg.Client, api.ProofDigest(r.Msg))
	if err := p.Allow(auth.Request{Scope: auth.SandboxesCreate}); err != nil {
		return nil, api.ToConnect(&api.Status{Code: connect.CodePermissionDenied, Err: err})
	}
	s := &v1.Sandbox{SandboxId: string(turnstone.NewSandboxID()), Template: "base", Metadata: r.Msg.Metadata,
		State: v1.SandboxState_SANDBOX_STATE_READY, Created: timestamppb.Now(), Node: "n1"}
	g.tenants[s.SandboxId], g.limits[s.SandboxId] = p.Tenant, r.Msg.Timeout.AsDuration()
	g.all = append([]*v1.Sandbox{s}, g.all...)
	return connect.NewResponse(&v1.CreateSandboxResponse{Sandbox: s}), nil
}

func (g *world) GetSandbox(ctx context.Context, r *connect.Request[v1.GetSandboxRequest]) (
	*connect.Response[v1.GetSandboxResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, _ := auth.FromContext(ctx)
	for _, s := range g.all {
		if s.SandboxId == r.Msg.SandboxId && g.tenants[s.SandboxId] == p.Tenant {
			return connect.NewResponse(&v1.GetSandboxResponse{Sandbox: s}), nil
		}
	}
	return nil, api.ToConnect(turnstone.Errorf("x", turnstone.KindNotFound, "sandbox", "does not exist"))
}

func (g *world) ListSandboxes(ctx context.Context, r *connect.Request[v1.ListSandboxesRequest]) (
	*connect.Response[v1.ListSandboxesResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, _ := auth.FromContext(ctx)
	a, at := &v1.ListSandboxesResponse{}, 0
	if t := r.Msg.Page.GetToken(); t != "" {
		n, err := strconv.Atoi(t)
		if err != nil {
			return nil, api.ToConnect(turnstone.Errorf("x", turnstone.KindInvalid, "page.token", "is forged"))
		}
		at = n
	}
	for ; at < len(g.all) && len(a.Sandboxes) < int(r.Msg.Page.GetSize()); at++ {
		if s := g.all[at]; g.tenants[s.SandboxId] == p.Tenant {
			a.Sandboxes = append(a.Sandboxes, s)
		}
	}
	if at < len(g.all) {
		a.NextPageToken = strconv.Itoa(at)
	}
	return connect.NewResponse(a), nil
}

func (g *world) SetSandboxTimeout(_ context.Context, r *connect.Request[v1.SetSandboxTimeoutRequest]) (
	*connect.Response[v1.SetSandboxTimeoutResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits[r.Msg.SandboxId] = r.Msg.Timeout.AsDuration()
	return connect.NewResponse(&v1.SetSandboxTimeoutResponse{}), nil
}

func (g *world) PauseSandbox(_ context.Context, r *connect.Request[v1.PauseSandboxRequest]) (
	*connect.Response[v1.PauseSandboxResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.all {
		s.Paused = s.Paused || s.SandboxId == r.Msg.SandboxId
	}
	return connect.NewResponse(&v1.PauseSandboxResponse{}), nil
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
	*world
	url string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	a, err := agent.New(agent.Options{RunDir: t.TempDir(), Cwd: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	g := &world{agent: a, node: channel.NewKeyPair(), key: pass.NewKey([pass.KeySize]byte{1}),
		tenants: map[string]string{}, limits: map[string]time.Duration{}}
	p := func(tenant string, scopes ...auth.Scope) auth.Principal {
		return auth.Principal{Issuer: "test", TokenID: tenant, Tenant: tenant, Scopes: scopes,
			Sessions: []auth.Pattern{auth.Any}, Templates: []auth.Pattern{auth.Any}}
	}
	d := e2b.New(e2b.Options{Arrive: g.arrive, Node: g, Key: g.key, Domain: "boxes.test", Log: slog.New(slog.DiscardHandler),
		Control: serve.Services{Sandboxes: g}.Handler(nil),
		Verifier: tokens{"good": p("t1", auth.SandboxesCreate, auth.SandboxesRead, auth.SandboxesConnect,
			auth.SandboxesControl), "weak": p("t1", auth.SandboxesRead), "alien": p("t2", auth.SandboxesRead)},
		Begin: func(ctx context.Context, _ auth.Principal) (context.Context, func(), error) {
			return ctx, func() {}, nil
		}})
	h := httptest.NewServer(d)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return &scene{g, h.URL}
}

// do makes a request, and returns its status, body and header. Headers are pairs.
func (s *scene) do(t *testing.T, method, path, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
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

// create makes a sandbox, and returns its ID and the token of its daemon.
func (s *scene) create(t *testing.T, body string) (id, token string) {
	t.Helper()
	status, text, _ := s.do(t, "POST", "/v2/sandboxes", body, "X-Api-Key", "e2b_good")
	var a struct{ SandboxID, EnvdAccessToken, Domain string }
	if err := json.Unmarshal([]byte(text), &a); err != nil || status != http.StatusCreated {
		t.Fatal(status, text, err)
	}
	if a.Domain != "boxes.test" {
		t.Errorf("domain %q", a.Domain)
	}
	return a.SandboxID, a.EnvdAccessToken
}

func TestKeys(t *testing.T) {
	s := newScene(t)
	id, _ := s.create(t, `{"templateID":"base","timeout":60}`)
	if s.proved != 1 {
		t.Errorf("%d calls prove the door's key", s.proved)
	}
	for _, tt := range []struct {
		key, method, path string
		want              int
	}{
		{"good", "GET", "/sandboxes/" + id, 200},
		{"e2b_weak", "GET", "/sandboxes/" + id, 200},
		{"e2b_" + hex.EncodeToString([]byte("good")), "GET", "/sandboxes/" + id, 200},
		{"e2b_" + hex.EncodeToString([]byte("wrong")), "GET", "/sandboxes/" + id, 401},
		{hex.EncodeToString([]byte("good")), "GET", "/sandboxes/" + id, 401},
		{"e2b_weak", "POST", "/sandboxes", 403},
		{"e2b_weak", "POST", "/v2/sandboxes/" + id + "/connect", 403},
		{"e2b_alien", "GET", "/sandboxes/" + id, 404},
		{"e2b_alien", "POST", "/sandboxes/" + id + "/pause", 404},
		{"e2b_alien", "DELETE", "/sandboxes/" + id, 404},
		{"", "GET", "/sandboxes/" + id, 401},
		{"e2b_wrong", "GET", "/sandboxes", 401},
		{strings.Repeat("x", 20<<10), "GET", "/sandboxes", 401},
		{"e2b_good", "GET", "/sandboxes/sb_000000000000000000", 404},
		{"e2b_good", "GET", "/sandboxes/nonsense", 404},
		{"e2b_good", "PUT", "/sandboxes/" + id + "/network", 501},
	} {
		if status, text, _ := s.do(t, tt.method, tt.path, "", "X-Api-Key", tt.key); status != tt.want {
			t.Errorf("%.20s %s %s: %d %s", tt.key, tt.method, tt.path, status, text)
		}
	}
	if _, text, _ := s.do(t, "GET", "/sandboxes/"+id, "", "X-Api-Key", "weak"); strings.Contains(text, "ed_") {
		t.Error("a caller without the scope gets the daemon's token")
	}
}

// TestArrive: an address that comes too often is refused before its token is looked at.
func TestArrive(t *testing.T) {
	s := newScene(t)
	s.often.Store(true)
	status, text, h := s.do(t, "GET", "/sandboxes", "", "X-Api-Key", "wrong")
	if status != 429 || h.Get("Retry-After") != "2" || !strings.Contains(text, "too often") {
		t.Errorf("%d %s %v", status, text, h)
	}
	if status, _, _ := s.do(t, "GET", "/files?path=a&signature=v1_guess", ""); status != 429 {
		t.Errorf("a link without its sandbox: %d", status)
	}
	s.often.Store(false)
	if status, _, _ = s.do(t, "GET", "/files?path=a&signature=v1_guess", ""); status != 401 {
		t.Errorf("a link later: %d", status)
	}
	if status, _, _ = s.do(t, "GET", "/sandboxes", "", "X-Api-Key", "wrong"); status != 401 {
		t.Errorf("later: %d", status)
	}
}

func TestBodies(t *testing.T) {
	s := newScene(t)
	for body, want := range map[string]int{
		`{`: 400, `{"nonsense":1}`: 400, `{} {}`: 400, `{"timeout":-1}`: 400, `{"timeout":99999999}`: 400,
		`{"autoPause":true}`: 400, `{"mcp":{"a":{}}}`: 400, `{"volumeMounts":[{}]}`: 400,
		`{"network":{"allowOut":["a"],"denyOut":["b"]}}`: 400, `{"metadata":{"turnstone.branch":"x"}}`: 400,
		`{"x":"` + strings.Repeat("y", 300<<10) + `"}`: 413, ``: 201,
		`{"network":{"allowPublicTraffic":true,"denyOut":["8.8.8.8"]}}`: 201, `{"network":{"allowPublicTraffic":true}}`: 201,
		`{"autoPause":false,"secure":true,"mcp":null,"network":{"denyOut":["0.0.0.0/0"]}}`: 201,
	} {
		if status, text, _ := s.do(t, "POST", "/sandboxes", body, "X-Api-Key", "good"); status != want {
			t.Errorf("%.60s: %d %s", body, status, text)
		}
	}
}

func TestPages(t *testing.T) {
	s := newScene(t)
	var ids []string
	for n := range 7 {
		owner := "door"
		if n == 3 {
			owner = "other" // made elsewhere: no client of the door sees it
		}
		id, _ := s.create(t, `{"metadata":{"owner":"door"}}`)
		s.mu.Lock()
		s.all[0].Metadata = map[string]string{"owner": owner}
		// IDs of one millisecond are in no order, and the clock may be set back: starts are in an order here
		s.all[0].Created = timestamppb.New(time.Unix(1_800_000_000, int64(n)))
		s.mu.Unlock()
		if owner == "door" {
			ids = append(ids, id)
		}
	}
	for _, order := range []string{"asc", "desc"} {
		for _, limit := range []string{"1", "2", "5", "100"} {
			var got []string
			token := ""
			for range 20 {
				_, text, h := s.do(t, "GET", "/v2/sandboxes?order="+order+"&limit="+limit+"&nextToken="+token, "",
					"X-Api-Key", "good")
				var page []struct{ SandboxID string }
				if err := json.Unmarshal([]byte(text), &page); err != nil {
					t.Fatal(text)
				}
				for _, i := range page {
					got = append(got, i.SandboxID)
				}
				if token = h.Get("X-Next-Token"); token == "" {
					break
				}
			}
			want := append([]string(nil), ids...)
			if order == "desc" {
				for i, j := 0, len(want)-1; i < j; i, j = i+1, j-1 {
					want[i], want[j] = want[j], want[i]
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%s by %s: %v, want %v", order, limit, got, want)
			}
		}
	}
	for _, q := range []string{"limit=0", "limit=x", "order=up", "state=gone", "startedAfter=now",
		"nextToken=asc.x", "nextToken=forged", "order=asc&nextToken=1", "order=asc&nextToken=asc.x",
		"order=asc&nextToken=asc.1.x", "metadata=%25"} {
		if status, text, _ := s.do(t, "GET", "/v2/sandboxes?"+q, "", "X-Api-Key", "good"); status != 400 {
			t.Errorf("%s: %d %s", q, status, text)
		}
	}
}

func TestPausedIsNotFound(t *testing.T) {
	s := newScene(t)
	id, token := s.create(t, `{}`)
	at := []string{"E2b-Sandbox-Id", id, "X-Access-Token", token}
	if status, _, _ := s.do(t, "GET", "/health", "", at...); status != 204 {
		t.Fatal(status)
	}
	for _, want := range []int{204, 409} {
		if status, text, _ := s.do(t, "POST", "/sandboxes/"+id+"/pause", "{}", "X-Api-Key", "good"); status != want {
			t.Fatal(status, text)
		}
	}
	if s.limits[id] != 30*24*time.Hour {
		t.Errorf("a paused sandbox ends in %s", s.limits[id])
	}
	status, text, _ := s.do(t, "GET", "/health", "", at...)
	if status != 502 || !strings.Contains(text, "was not found") {
		t.Error(status, text)
	}
}

func TestTarget(t *testing.T) {
	s := newScene(t)
	id, token := s.create(t, `{}`)
	k := pass.NewKey([pass.KeySize]byte{1})
	for name, tt := range map[string]struct {
		want    int
		headers []string
	}{
		"no token":        {401, []string{"E2b-Sandbox-Id", id}},
		"another's token": {401, []string{"E2b-Sandbox-Id", id, "X-Access-Token", k.Daemon("sb_000000000000000000")}},
		"for ports":       {401, []string{"E2b-Sandbox-Id", id, "X-Access-Token", k.Traffic(turnstone.SandboxID(id))}},
		"1 MB":            {401, []string{"E2b-Sandbox-Id", id, "X-Access-Token", strings.Repeat("x", 1<<20)}},
		"no sandbox": {502, []string{"E2b-Sandbox-Id", "sb_000000000000000000", "X-Access-Token",
			k.Daemon("sb_000000000000000000")}},
		"no ID":                    {401, []string{"E2b-Sandbox-Id", "../x", "X-Access-Token", k.Daemon("../x")}},
		"a host":                   {204, []string{"Host", "49983-" + id + ".boxes.test", "X-Access-Token", token}},
		"a port without its token": {401, []string{"Host", "80-" + id + ".boxes.test"}},
		"another domain":           {200, []string{"Host", "49983-" + id + ".other.test"}},
	} {
		if status, text, _ := s.do(t, "GET", "/health", "", tt.headers...); status != tt.want {
			t.Errorf("%s: %d %.80s", name, status, text)
		}
	}
}

// TestConnectNamesTheSandbox: older clients name the sandbox in the header of the call to the API that connects to it.
func TestConnectNamesTheSandbox(t *testing.T) {
	s := newScene(t)
	id, _ := s.create(t, `{}`)
	for key, want := range map[string]int{"e2b_good": 200, "e2b_weak": 403, "e2b_none": 401} {
		status, text, _ := s.do(t, "POST", "/sandboxes/"+id+"/connect", `{"timeout":60}`, "X-Api-Key", key,
			"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983")
		if status != want {
			t.Errorf("%s: %d %s", key, status, text)
		}
	}
}

// TestUnnamed: older clients do not name the sandbox that they have connected to, if they were told one address for all.
func TestUnnamed(t *testing.T) {
	s := newScene(t)
	_, other := s.create(t, `{}`)
	id, token := s.create(t, `{}`)
	ask := func(token string) int {
		status, _, _ := s.do(t, "GET", "/envs", "", "X-Access-Token", token)
		return status
	}
	if got := []int{ask(token), ask(other), ask(token + "0"), ask("ed_")}; !slices.Equal(got, []int{200, 200, 502, 502}) {
		t.Error(got)
	}
	s.end(id)
	if got := []int{ask(token), ask(other)}; !slices.Equal(got, []int{502, 200}) {
		t.Error(got)
	}
	s.often.Store(true)
	if got := ask(other); got != 429 {
		t.Error(got)
	}
}

// TestForms sends forms that no client of E2B sends.
func TestForms(t *testing.T) {
	s := newScene(t)
	id, token := s.create(t, `{}`)
	at := []string{"E2b-Sandbox-Id", id, "X-Access-Token", token, "Content-Type", "multipart/form-data; boundary=X"}
	part := func(name, file string) string {
		return "--X\r\nContent-Disposition: form-data; name=\"" + name + "\"; filename=\"" + file + "\"\r\n\r\nx\r\n"
	}
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		body string
		want int
	}{
		"good":        {part("file", dir+"/a") + part("file", dir+"/b") + "--X--\r\n", 200},
		"no end":      {part("file", dir+"/c"), 400},
		"cut off":     {"--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + dir + "/d\"\r\n\r\nx", 400},
		"no name":     {part("file", "") + "--X--\r\n", 400},
		"twice":       {part("file", dir+"/e") + part("file", dir+"/e") + "--X--\r\n", 400},
		"other parts": {part("other", dir+"/f") + "--X--\r\n", 200},
		"long path":   {part("file", "/"+strings.Repeat("x/", 3000)) + "--X--\r\n", 400},
		"nothing":     {"", 200},
	} {
		if status, text, _ := s.do(t, "POST", "/files", tt.body, at...); status != tt.want {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	status, text, _ := s.do(t, "POST", "/files?path="+dir+"/large", string(large), "E2b-Sandbox-Id", id,
		"X-Access-Token", token, "Content-Type", "application/octet-stream")
	if status != 200 {
		t.Fatal(status, text)
	}
	_, got, _ := s.do(t, "GET", "/files?path="+dir+"/large", "", "E2b-Sandbox-Id", id, "X-Access-Token", token)
	if got != string(large) {
		t.Errorf("%d bytes came back of %d", len(got), len(large))
	}
}
