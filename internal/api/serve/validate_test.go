package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/apitest"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

type request = v1.CreateSandboxRequest

const aSandbox = apitest.SandboxID

// TestRulesCompile: the rules of all messages compile, so none fails in a call.
func TestRulesCompile(t *testing.T) {
	requests, answers := apitest.Messages(t)
	for _, m := range append(requests, answers...) {
		err := Validate("test", newMessage(t, m))
		if turnstone.KindOf(err) == turnstone.KindInternal && err != nil {
			t.Errorf("%s: %v", m.Name(), errors.Unwrap(err))
		}
	}
}

func TestValidate(t *testing.T) {
	ok := func() *request {
		return &request{Client: apitest.Client(), ContextId: "research",
			Source:  &v1.CreateSandboxRequest_Image{Image: "ghcr.io/x/y:1@sha256:0123"},
			Env:     map[string]string{"A": "1\n2"},
			Machine: &v1.Machine{Cpus: 2, Memory: 1 << 30},
			Network: &v1.Network{Mode: v1.NetworkMode_NETWORK_MODE_ON,
				Allow: []string{"*.example.com:443", "10.0.0.0/8"}},
			Timeout: durationpb.New(3600e9), Owner: "ssh-ed25519 " + strings.Repeat("A", 68)}
	}
	if err := Validate("test", ok()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*request)
		field  string
	}{
		"no nonce": {func(r *request) { r.Client.Nonce = nil }, "client.nonce"},
		"short proof": {func(r *request) {
			r.Client.Proofs = []*v1.KeyProof{{Node: "n", Message: make([]byte, 103)}}
		}, "client.proofs[0].message"},
		"many proofs": {func(r *request) {
			for range 7 {
				r.Client.Proofs = append(r.Client.Proofs, &v1.KeyProof{Node: "n",
					Message: make([]byte, 104)})
			}
		}, "client.proofs"},
		"short key": {func(r *request) {
			r.Client.ClientPublicKey = []byte("x")
		}, "client.client_public_key"},
		"long nonce": {func(r *request) { r.Client.Nonce = make([]byte, 33) }, "client.nonce"},
		"large grant": {func(r *request) {
			r.Client.Grant = make([]byte, 4097)
		}, "client.grant"},
		"name of a path":  {func(r *request) { r.ContextId = "../x" }, "context_id"},
		"long name":       {func(r *request) { r.Name = strings.Repeat("a", 64) }, "name"},
		"name with break": {func(r *request) { r.Name = "a\n" }, "name"},
		"zero in a value": {func(r *request) { r.Env["SECRET"] = "a\x00" }, "env"},
		"bad variable":    {func(r *request) { r.Env["SECRET="] = "a" }, "env"},
		"many variables": {func(r *request) {
			for i := range 65 {
				r.Env["SECRET"+strings.Repeat("A", i)] = ""
			}
		}, "env"},
		"relative folder": {func(r *request) { r.Cwd = "x" }, "cwd"},
		"little memory":   {func(r *request) { r.Machine.Memory = 1 }, "machine.memory"},
		"many CPUs":       {func(r *request) { r.Machine.Cpus = 65 }, "machine.cpus"},
		"no time":         {func(r *request) { r.Timeout = durationpb.New(0) }, "timeout"},
		"negative time":   {func(r *request) { r.Timeout = durationpb.New(-1) }, "timeout"},
		"long time": {func(r *request) {
			r.Timeout = &durationpb.Duration{Seconds: 1 << 62}
		}, "timeout"},
		"bad rule":     {func(r *request) { r.Network.Allow[1] = "a b" }, "network.allow[1]"},
		"unknown mode": {func(r *request) { r.Network.Mode = 7 }, "network.mode"},
		"another key":  {func(r *request) { r.Owner = "ssh-rsa AAAA" }, "owner"},
		"long key": {func(r *request) {
			r.IdempotencyKey = strings.Repeat("k", 65)
		}, "idempotency_key"},
		"no template": {func(r *request) {
			r.Source = &v1.CreateSandboxRequest_Template{}
		}, "template"},
		"unknown field": {func(r *request) {
			r.Network.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
		}, "Network"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ok()
			c.change(r)
			err := Validate("SandboxService.CreateSandbox", r)
			var s *api.Status
			if turnstone.KindOf(err) != turnstone.KindInvalid || !errors.As(err, &s) {
				t.Fatalf("%v", err)
			}
			if len(s.Violations) == 0 || s.Violations[0].Field != c.field ||
				s.Violations[0].Rule == "" || s.Violations[0].Message == "" {
				t.Errorf("%+v", s.Violations)
			}
			for _, word := range []string{"regex", "`", "^", "(s)", "enum", "oneof", "value is",
				"rule", "\n"} {
				if strings.Contains(err.Error(), word) {
					t.Errorf("%v has %q", err, word)
				}
			}
			if strings.Contains(api.ToConnect(err).Error()+details(t, api.ToConnect(err)), "SECRET") {
				t.Errorf("%v has data of the request", err)
			}
		})
	}
	fork := &v1.ForkSandboxRequest{SandboxId: aSandbox,
		Clients: []*v1.ChannelClient{apitest.Client(), apitest.Client()}}
	if err := Validate("test", fork); err == nil {
		t.Error("two clients have one nonce")
	}
	fork.Clients[1].Nonce[0] = 1
	if err := Validate("test", fork); err != nil {
		t.Error(err)
	}
}

// TestPatternsHaveWords: a value that does not match a pattern is refused in words, whichever field
// it is of.
func TestPatternsHaveWords(t *testing.T) {
	requests, answers := apitest.Messages(t)
	seen, found := map[protoreflect.FullName]bool{}, 0
	check := func(m protoreflect.FullName, s *validate.StringRules) {
		if s.GetPattern() == "" {
			return
		}
		if found++; patterns[s.GetPattern()] == "" {
			t.Errorf("%s: %s", m, s.GetPattern())
		}
	}
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			r, err := protovalidate.ResolveFieldRules(f)
			if err != nil {
				t.Fatal(err)
			}
			check(f.FullName(), r.GetString())
			check(f.FullName(), r.GetRepeated().GetItems().GetString())
			check(f.FullName(), r.GetMap().GetKeys().GetString())
			check(f.FullName(), r.GetMap().GetValues().GetString())
			if f.Message() != nil {
				walk(f.Message())
			}
		}
	}
	for _, m := range append(requests, answers...) {
		walk(m)
	}
	if found < 50 {
		t.Errorf("%d patterns", found)
	}
}

// backend answers each call, and checks what arrives.
type backend struct {
	connectv1.UnimplementedSandboxServiceHandler
	err error
}

func (b backend) GetSandbox(_ context.Context, r *connect.Request[v1.GetSandboxRequest]) (
	*connect.Response[v1.GetSandboxResponse], error) {
	if b.err != nil {
		return nil, b.err
	}
	return connect.NewResponse(&v1.GetSandboxResponse{
		Sandbox: &v1.Sandbox{SandboxId: r.Msg.SandboxId, State: v1.SandboxState_SANDBOX_STATE_READY},
	}), nil
}

func (backend) PauseSandbox(context.Context, *connect.Request[v1.PauseSandboxRequest]) (
	*connect.Response[v1.PauseSandboxResponse], error) {
	panic("the text of a panic")
}

func (backend) WatchSandboxes(_ context.Context, _ *connect.Request[v1.WatchSandboxesRequest],
	s *connect.ServerStream[v1.WatchSandboxesResponse]) error {
	if err := s.Send(&v1.WatchSandboxesResponse{
		Event: v1.WatchEvent_WATCH_EVENT_SYNCED}); err != nil {
		return err
	}
	return turnstone.Errorf("sandbox.watch", turnstone.KindUnavailable, "node n", "it restarts")
}

// serve returns a server of b, and what is reported to its operator.
func serve(t *testing.T, b backend) (url string, reported func() string) {
	t.Helper()
	var mu sync.Mutex
	var log strings.Builder
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewSandboxServiceHandler(b, HandlerOptions(
		func(_ context.Context, procedure string, err error) {
			mu.Lock()
			defer mu.Unlock()
			log.WriteString(procedure + ": " + err.Error() + "\n")
		})...))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL, func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

// TestHandler: errors, panics and faults of requests arrive typed, in each protocol.
func TestHandler(t *testing.T) {
	url, reported := serve(t, backend{})
	for name, protocol := range map[string]connect.ClientOption{
		"Connect": connect.WithProtoJSON(), "gRPC-Web": connect.WithGRPCWeb(),
		"binary": connect.WithSendGzip(),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			c := connectv1.NewSandboxServiceClient(http.DefaultClient, url,
				append(api.ClientOptions(), protocol)...)
			got, err := c.GetSandbox(ctx,
				connect.NewRequest(&v1.GetSandboxRequest{SandboxId: aSandbox}))
			if err != nil || got.Msg.Sandbox.SandboxId != aSandbox {
				t.Fatalf("%v, %v", got, err)
			}
			_, err = c.GetSandbox(ctx, connect.NewRequest(&v1.GetSandboxRequest{SandboxId: "x"}))
			if err = api.FromConnect(err); turnstone.KindOf(err) != turnstone.KindInvalid ||
				!strings.HasPrefix(err.Error(), "request: sandbox_id: ") ||
				turnstone.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
			_, err = c.PauseSandbox(ctx,
				connect.NewRequest(&v1.PauseSandboxRequest{SandboxId: aSandbox}))
			if err = api.FromConnect(err); turnstone.KindOf(err) != turnstone.KindInternal ||
				strings.Contains(err.Error(), "text") {
				t.Errorf("%v", err)
			}
			if !strings.Contains(reported(), "PauseSandbox: panic: the text of a panic\n") {
				t.Errorf("reported is %q", reported())
			}
			_, err = c.DeleteSandbox(ctx,
				connect.NewRequest(&v1.DeleteSandboxRequest{SandboxId: aSandbox}))
			if err = api.FromConnect(err); api.CodeOf(err) != connect.CodeUnimplemented {
				t.Errorf("%v", err)
			}
			watch(ctx, t, c)
		})
	}
}

func watch(ctx context.Context, t *testing.T, c connectv1.SandboxServiceClient) {
	t.Helper()
	s, err := c.WatchSandboxes(ctx, connect.NewRequest(&v1.WatchSandboxesRequest{}))
	if err != nil || !s.Receive() || s.Msg().Event != v1.WatchEvent_WATCH_EVENT_SYNCED {
		t.Fatalf("%v, %v", s, err)
	}
	if s.Receive() {
		t.Error("a second event")
	}
	err = api.FromConnect(s.Err())
	if turnstone.KindOf(err) != turnstone.KindUnavailable || !api.Retryable(err) ||
		err.Error() != "node n: it restarts" {
		t.Errorf("%v", err)
	}
	s, err = c.WatchSandboxes(ctx, connect.NewRequest(&v1.WatchSandboxesRequest{
		Filter: &v1.SandboxFilter{SandboxIds: []string{"x"}}}))
	if err != nil || s.Receive() {
		t.Fatal("a watch with a bad filter began")
	}
	if err = api.FromConnect(s.Err()); turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "filter.sandbox_ids[0]") {
		t.Errorf("%v", err)
	}
}

// TestPlainHTTP: what curl sends and gets.
func TestPlainHTTP(t *testing.T) {
	url, _ := serve(t, backend{})
	limited, _ := serve(t, backend{err: &api.Status{RetryAfter: 3e9,
		Err: turnstone.Errorf("api.limit", turnstone.KindExhausted, "tenant x", "too many calls")}})
	const get = "/turnstone.v1.SandboxService/GetSandbox"
	for name, c := range map[string]struct {
		url, path, body string
		status          int
		want            string
	}{
		"good":      {url, get, `{"sandboxId":"` + aSandbox + `"}`, 200, `SANDBOX_STATE_READY`},
		"snake":     {url, get, `{"sandbox_id":"` + aSandbox + `"}`, 200, `SANDBOX_STATE_READY`},
		"misspelt":  {url, get, `{"sandboxID":"` + aSandbox + `"}`, 400, `unknown field`},
		"empty":     {url, get, ``, 400, `JSON object is missing`},
		"no object": {url, get, `[]`, 400, `invalid_argument`},
		"invalid":   {url, get, `{}`, 400, `ERROR_KIND_INVALID`},
		"large": {url, get, `{"sandboxId":"` + strings.Repeat("x", api.MaxRequest) + `"}`, 429,
			`resource_exhausted`},
		"no such method": {url, get + "s", `{}`, 404, ``},
		"rate limit": {limited, get, `{"sandboxId":"` + aSandbox + `"}`, 429,
			`"retryAfter":"3s"`},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := http.Post(c.url+c.path, "application/json", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			var compact bytes.Buffer
			if json.Compact(&compact, body) != nil {
				compact.Write(body)
			}
			if answer.StatusCode != c.status || !strings.Contains(compact.String(), c.want) {
				t.Errorf("%s: %s", answer.Status, &compact)
			}
			if c.url == limited && answer.Header.Get("Retry-After") != "3" {
				t.Errorf("the header is %v", answer.Header)
			}
		})
	}
}

// newMessage returns an empty message of a generated type.
func newMessage(t *testing.T, m protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	return apitest.MessageType(t, m).New().Interface()
}

// details returns the texts of all details of e.
func details(t *testing.T, e *connect.Error) (all string) {
	t.Helper()
	if len(e.Details()) == 0 {
		t.Errorf("%v has no detail", e)
	}
	for _, d := range e.Details() {
		m, err := d.Value()
		if err != nil {
			t.Fatal(err)
		}
		all += fmt.Sprint(m)
	}
	return all
}
