package plain_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/node/plain"
)

// registry is a control API with the sandbox of a box.
type registry struct {
	connectv1.UnimplementedSandboxServiceHandler
	id      turnstone.SandboxID
	mu      sync.Mutex
	sandbox *v1.Sandbox // nil: there is none
	free    bool        // it has no client
}

func (g *registry) CreateSandbox(_ context.Context, r *connect.Request[v1.CreateSandboxRequest]) (
	*connect.Response[v1.CreateSandboxResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free = r.Msg.Client == nil
	g.sandbox = &v1.Sandbox{SandboxId: string(g.id), State: v1.SandboxState_SANDBOX_STATE_READY,
		Template: r.Msg.GetTemplate(), Metadata: r.Msg.Metadata}
	return connect.NewResponse(&v1.CreateSandboxResponse{Sandbox: g.sandbox}), nil
}

// open reports whether the sandbox was created without a client's key.
func (g *registry) open(turnstone.SandboxID, bool) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.free, nil
}

func (g *registry) ListSandboxes(_ context.Context, r *connect.Request[v1.ListSandboxesRequest]) (
	*connect.Response[v1.ListSandboxesResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := &v1.ListSandboxesResponse{}
	if g.sandbox != nil && g.sandbox.Metadata["job"] == r.Msg.Filter.Metadata["job"] {
		a.Sandboxes = append(a.Sandboxes, g.sandbox)
	}
	return connect.NewResponse(a), nil
}

func (g *registry) WatchSandboxes(ctx context.Context, _ *connect.Request[v1.WatchSandboxesRequest],
	s *connect.ServerStream[v1.WatchSandboxesResponse]) error {
	err := s.Send(&v1.WatchSandboxesResponse{Event: v1.WatchEvent_WATCH_EVENT_LISTED,
		Sandbox: g.sandbox})
	<-ctx.Done()
	return err
}

func (g *registry) DeleteSandbox(_ context.Context, r *connect.Request[v1.DeleteSandboxRequest]) (
	*connect.Response[v1.DeleteSandboxResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sandbox
	g.sandbox = nil
	return connect.NewResponse(&v1.DeleteSandboxResponse{Sandbox: s}), nil
}

// examples returns the shell commands of the section of docs/api.md about curl.
func examples(t *testing.T) (all []string) {
	t.Helper()
	b, err := os.ReadFile("../../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## Examples with curl\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for {
		_, rest, ok := strings.Cut(text, "```sh\n")
		if !ok {
			return all
		}
		var script string
		script, text, _ = strings.Cut(rest, "\n```\n")
		all = append(all, script)
	}
}

// TestExamples runs the examples of docs/api.md one after another in one shell.
func TestExamples(t *testing.T) {
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	b := newBox(t)
	g := &registry{id: b.id}
	p := auth.Principal{Issuer: "test", TokenID: "1", Tenant: "t1",
		Templates: []auth.Pattern{auth.Any},
		Scopes:    []auth.Scope{auth.SandboxesConnect, auth.TurnsRun}}
	clear := plain.New(plain.Options{Allow: config.PlaintextLoopback, Verifier: tokens{"good": p},
		Tenant: func(context.Context, string) (plain.Tenant, error) {
			return plain.Tenant{Sandboxes: b, Runner: &runner{}, Open: g.open}, nil
		}})
	mux := http.NewServeMux()
	mux.Handle(plain.Prefix, clear.Handler())
	mux.Handle("/", serve.Services{Sandboxes: g}.Handler(nil))
	h := httptest.NewServer(mux)
	t.Cleanup(h.Close)

	all := examples(t)
	want := []string{"", `"sandboxId":"` + string(b.id), "WATCH_EVENT_LISTED",
		`"stdout":"hello world\n"`, "the receipt\n", `"sandbox":{`}
	if len(all) != len(want) {
		t.Fatalf("%d examples, and %d answers", len(all), len(want))
	}
	const mark = "\n=== next ===\n"
	script := "set -eu\n" + strings.Join(all, "\nprintf '"+strings.ReplaceAll(mark, "\n", `\n`)+"'\n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "S="+h.URL, "T=good")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	answers := strings.Split(string(out), mark)
	if len(answers) != len(want) {
		t.Fatalf("%d answers: %q", len(answers), out)
	}
	for i, text := range want {
		// protobuf's JSON has a space here and there, so that nobody relies on its spelling
		if !strings.Contains(strings.ReplaceAll(answers[i], `": `, `":`), text) {
			t.Errorf("the answer to\n%s\nis\n%s\nwithout %q", all[i], answers[i], text)
		}
	}
	if g.sandbox != nil {
		t.Error("the sandbox is still there")
	}
}
