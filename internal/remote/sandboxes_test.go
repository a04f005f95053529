package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	apiserve "turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/sandboxes"
)

// park is the part of a control API that is about sandboxes. It validates as servers do.
type park struct {
	connectv1.UnimplementedSandboxServiceHandler
	mu      sync.Mutex
	all     []*v1.Sandbox // newest first
	created []*v1.CreateSandboxRequest
	forked  *v1.ForkSandboxRequest
	got     int   // calls of GetSandbox
	refuse  error // of ConnectSandbox; nil: it is not there
}

func (p *park) ConnectSandbox(ctx context.Context, r *connect.Request[v1.ConnectSandboxRequest]) (
	*connect.Response[v1.ConnectSandboxResponse], error) {
	if p.refuse != nil {
		return nil, api.ToConnect(p.refuse)
	}
	return p.UnimplementedSandboxServiceHandler.ConnectSandbox(ctx, r)
}

func (p *park) CreateSandbox(_ context.Context, r *connect.Request[v1.CreateSandboxRequest]) (
	*connect.Response[v1.CreateSandboxResponse], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.created = append(p.created, r.Msg)
	s := &v1.Sandbox{SandboxId: string(turnstone.NewSandboxID()), Name: r.Msg.Name,
		State: v1.SandboxState_SANDBOX_STATE_READY, Template: r.Msg.GetTemplate(), Node: "n1",
		Substrate: "gvisor"}
	p.all = slices.Insert(p.all, 0, s)
	return connect.NewResponse(&v1.CreateSandboxResponse{Sandbox: s}), nil
}

func (p *park) find(id string) *v1.Sandbox {
	for _, s := range p.all {
		if s.SandboxId == id {
			return s
		}
	}
	return nil
}

func (p *park) GetSandbox(_ context.Context, r *connect.Request[v1.GetSandboxRequest]) (
	*connect.Response[v1.GetSandboxResponse], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got++
	s := p.find(r.Msg.SandboxId)
	if s == nil {
		return nil, api.ToConnect(turnstone.Errorf("sandbox.get", turnstone.KindNotFound,
			r.Msg.SandboxId, "does not exist"))
	}
	return connect.NewResponse(&v1.GetSandboxResponse{Sandbox: s}), nil
}

func (p *park) ListSandboxes(_ context.Context, r *connect.Request[v1.ListSandboxesRequest]) (
	*connect.Response[v1.ListSandboxesResponse], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*v1.Sandbox
	for _, s := range p.all {
		f := r.Msg.Filter
		if (f.Name == "" || f.Name == s.Name) &&
			(len(f.States) == 0 || slices.Contains(f.States, s.State)) {
			all = append(all, s)
		}
	}
	from := 0
	_, _ = fmt.Sscan(r.Msg.Page.Token, &from)
	a := &v1.ListSandboxesResponse{}
	if a.Sandboxes = all[from:]; len(a.Sandboxes) > 2 { // short pages
		a.Sandboxes, a.NextPageToken = a.Sandboxes[:2], fmt.Sprint(from+2)
	}
	return connect.NewResponse(a), nil
}

func (p *park) DeleteSandbox(_ context.Context, r *connect.Request[v1.DeleteSandboxRequest]) (
	*connect.Response[v1.DeleteSandboxResponse], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.find(r.Msg.SandboxId)
	s.State = v1.SandboxState_SANDBOX_STATE_STOPPED
	s.Reason, s.Removed = v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED, !r.Msg.Keep
	return connect.NewResponse(&v1.DeleteSandboxResponse{Sandbox: s}), nil
}

func (p *park) ForkSandbox(_ context.Context, r *connect.Request[v1.ForkSandboxRequest]) (
	*connect.Response[v1.ForkSandboxResponse], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forked = r.Msg
	a := &v1.ForkSandboxResponse{}
	for range r.Msg.Clients {
		a.Clones = append(a.Clones, &v1.CreateSandboxResponse{Sandbox: &v1.Sandbox{
			SandboxId: string(turnstone.NewSandboxID()), ParentId: r.Msg.SandboxId,
			State: v1.SandboxState_SANDBOX_STATE_RUNNING}})
	}
	return connect.NewResponse(a), nil
}

// parked returns the client of a park.
func parked(t *testing.T) (*park, *remote.Sandboxes) {
	t.Helper()
	p := &park{}
	s := httptest.NewServer(apiserve.Services{Sandboxes: p}.Handler(nil))
	c := remote.NewServer(remote.ServerOptions{Address: address(t, s.URL),
		Key: channel.NewKeyPair(), Pins: func(context.Context, string, []byte) (attest.Pins, error) { return nil, nil }})
	t.Cleanup(func() { _ = c.Close(); s.Close() })
	return p, c.AllSandboxes()
}

// TestFoundIsNotAskedAgain: a command of an ID does not ask for its sandbox, a copy that has found it
// does not ask once more, and the next copy does.
func TestFoundIsNotAskedAgain(t *testing.T) {
	p, b := parked(t)
	i, err := b.Create(t.Context(), sandboxes.Spec{Image: "base", TTL: time.Hour,
		Shape: turnstone.Shape{Network: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := b.Resolve(t.Context(), string(i.ID))
	if err != nil || id != i.ID {
		t.Fatal(id, err)
	}
	if _, err := b.Exec(t.Context(), id, sandboxes.Command{Argv: []string{"true"}}); err == nil {
		t.Error("the park has no channels")
	}
	if _, err := b.StartDetached(t.Context(), id, sandboxes.Command{Argv: []string{"true"}}); err == nil {
		t.Error("the park has no channels")
	}
	if p.got != 0 {
		t.Errorf("the server was asked %d times about a command's sandbox", p.got)
	}
	if _, err = b.Find(t.Context(), string(i.ID)); err != nil {
		t.Fatal(err)
	}
	for want := 1; want < 4; want++ {
		if err := b.Download(t.Context(), i.ID, "/x", t.TempDir(), nil); err == nil {
			t.Fatal("the park has no channels")
		}
		if p.got != want {
			t.Errorf("the server was asked %d times, not %d", p.got, want)
		}
	}
}

// TestEndedSandboxIsNamed: a command of a sandbox that has ended or was removed says so, although
// nobody has asked for the sandbox before.
func TestEndedSandboxIsNamed(t *testing.T) {
	p, b := parked(t)
	p.all = []*v1.Sandbox{
		{SandboxId: "sb_000000000000000001", State: v1.SandboxState_SANDBOX_STATE_FAILED,
			Reason: v1.SandboxReason_SANDBOX_REASON_MACHINE_DIED},
		{SandboxId: "sb_000000000000000002", State: v1.SandboxState_SANDBOX_STATE_STOPPED,
			Removed: true}}
	stopped := turnstone.Errorf("sandbox.connect", turnstone.KindInvalid, "x", "is stopped")
	for id, want := range map[turnstone.SandboxID]struct {
		refuse error
		kind   turnstone.Kind
		says   string
	}{
		"sb_000000000000000001": {stopped, turnstone.KindDead, "its machine died"},
		"sb_000000000000000002": {stopped, turnstone.KindNotFound, "no such sandbox"},
		"sb_000000000000000003": {turnstone.Errorf("sandbox.connect", turnstone.KindNotFound, "x",
			"does not exist"), turnstone.KindNotFound, "no such sandbox"},
	} {
		p.refuse = want.refuse
		_, err := b.Exec(t.Context(), id, sandboxes.Command{Argv: []string{"true"}})
		var e *turnstone.Error
		if turnstone.KindOf(err) != want.kind || !strings.Contains(fmt.Sprint(err), want.says) ||
			want.kind == turnstone.KindNotFound && (!errors.As(err, &e) || e.Op != "sandbox.find") {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestSandboxesAreFound(t *testing.T) {
	p, b := parked(t)
	var ids []turnstone.SandboxID
	for _, name := range []string{"one", "two", "two", "", "five"} {
		i, err := b.Create(t.Context(), sandboxes.Spec{Name: name, Image: "base", TTL: time.Hour,
			Shape: turnstone.Shape{Network: true}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, i.ID)
	}
	if err := b.Remove(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	p.find(string(ids[4])).State = v1.SandboxState_SANDBOX_STATE_FAILED
	p.find(string(ids[4])).Reason = v1.SandboxReason_SANDBOX_REASON_MACHINE_DIED
	all, err := b.List(t.Context())
	if err != nil || len(all) != 4 || all[0].ID != ids[0] || all[3].Reason != "its machine died" ||
		slices.ContainsFunc(all, func(i sandboxes.Info) bool { return i.ID == ids[2] }) {
		t.Errorf("%+v %v", all, err)
	}
	for ref, want := range map[string]turnstone.SandboxID{"one": ids[0], "two": ids[1],
		"five": ids[4], string(ids[3]): ids[3]} {
		if i, err := b.Find(t.Context(), ref); err != nil || i.ID != want {
			t.Errorf("%s: %s %v, not %s", ref, i.ID, err, want)
		}
	}
	for ref, kind := range map[string]turnstone.Kind{"six": turnstone.KindNotFound,
		"": turnstone.KindNotFound, "sb_": turnstone.KindNotFound, "a b": turnstone.KindNotFound,
		"sb_zzz": turnstone.KindNotFound, string(ids[0][:6]): turnstone.KindInvalid,
		string(ids[2]):                   turnstone.KindNotFound, // removed
		string(turnstone.NewSandboxID()): turnstone.KindNotFound} {
		_, err := b.Find(t.Context(), ref)
		var e *turnstone.Error
		if turnstone.KindOf(err) != kind {
			t.Errorf("%q: %v", ref, err)
		} else if e, _ = err.(*turnstone.Error); e == nil || e.Op != "sandbox.find" {
			t.Errorf("%q: %v is not of the operation that decides the exit status", ref, err)
		}
	}
}

func TestSandboxSpecs(t *testing.T) {
	p, b := parked(t)
	base := sandboxes.Spec{Image: "base", TTL: time.Hour, Substrate: "auto",
		Shape: turnstone.Shape{Network: true}}
	for name, tt := range map[string]struct {
		change func(*sandboxes.Spec)
		want   *v1.CreateSandboxRequest // without key and client; nil: it is refused
	}{
		"defaults": {func(*sandboxes.Spec) {}, &v1.CreateSandboxRequest{
			Source: &v1.CreateSandboxRequest_Template{Template: "base"}}},
		"an image and a machine": {func(s *sandboxes.Spec) {
			s.Image, s.Shape.CPUs, s.Shape.Memory, s.Env = "python:3.12", 2, 1<<30, []string{"A=b=c"}
		}, &v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_Image{Image: "python:3.12"},
			Machine: &v1.Machine{Cpus: 2, Memory: 1 << 30}, Env: map[string]string{"A": "b=c"}}},
		"no network": {func(s *sandboxes.Spec) { s.Shape.Network = false },
			&v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_Template{Template: "base"},
				Network: &v1.Network{Mode: v1.NetworkMode_NETWORK_MODE_OFF}}},
		"rules": {func(s *sandboxes.Spec) {
			s.Network = &turnstone.NetworkSpec{Allow: []string{"a.example:443"}, Only: true}
		}, &v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_Template{Template: "base"},
			Network: &v1.Network{Mode: v1.NetworkMode_NETWORK_MODE_ON,
				Allow: []string{"a.example:443"}}}},
		"a session": {func(s *sandboxes.Spec) { s.Image, s.Session = "", "research" },
			&v1.CreateSandboxRequest{ContextId: "research"}},
		"a branch": {func(s *sandboxes.Spec) { s.Image, s.Session, s.Branch = "", "research", "side" },
			&v1.CreateSandboxRequest{ContextId: "research", Branch: "side"}},
		"a secret that cannot be masked": {func(s *sandboxes.Spec) {
			s.Session, s.Secrets = "research", []string{"K=x"}
		}, nil},
		"no end": {func(s *sandboxes.Spec) { s.TTL = 0 }, nil},
		"a secret header": {func(s *sandboxes.Spec) {
			s.Network = &turnstone.NetworkSpec{Headers: []turnstone.SecretHeader{{}}}
		}, nil},
		"a bad variable": {func(s *sandboxes.Spec) { s.Env = []string{"A B=c"} }, nil},
	} {
		spec, before := base, len(p.created)
		tt.change(&spec)
		_, err := b.Create(t.Context(), spec, nil)
		if tt.want == nil {
			if turnstone.KindOf(err) != turnstone.KindInvalid || len(p.created) != before {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := p.created[len(p.created)-1]
		if got.IdempotencyKey == "" || len(got.Client.Nonce) != 32 ||
			got.Timeout.AsDuration() != time.Hour {
			t.Errorf("%s: %v", name, got)
		}
		got.IdempotencyKey, got.Client, got.Timeout = "", nil, nil
		if !proto.Equal(got, tt.want) {
			t.Errorf("%s: %v, not %v", name, got, tt.want)
		}
	}
}

// TestSandboxSecrets: no control call has a secret, and a sandbox that did not get its secrets is
// removed.
func TestSandboxSecrets(t *testing.T) {
	p, b := parked(t)
	_, err := b.Create(t.Context(), sandboxes.Spec{Image: "base", TTL: time.Hour,
		Secrets: []string{"K=hidden"}}, nil)
	if err == nil {
		t.Fatal("a sandbox without a channel got a secret")
	}
	if len(p.created) != 1 || strings.Contains(p.created[0].String(), "hidden") {
		t.Errorf("%v", p.created)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v %v", all, err)
	}
}

func TestSandboxForks(t *testing.T) {
	p, b := parked(t)
	id, n := turnstone.NewSandboxID(), 0
	all, err := b.Fork(t.Context(), id, sandboxes.Fork{Count: 3, TTL: time.Minute},
		func(i sandboxes.Info) { n++ })
	if err != nil || len(all) != 3 || n != 3 || all[0].Parent != id {
		t.Fatalf("%+v %v, %d told", all, err, n)
	}
	if _, err := b.Fork(t.Context(), id, sandboxes.Fork{Count: 2, TTL: time.Minute, Prefix: "x"},
		nil); err != nil || !slices.Equal(p.forked.Names, []string{"x-1", "x-2"}) {
		t.Errorf("%v %v", p.forked, err)
	}
	if len(p.forked.Clients) != 2 || p.forked.Timeout.AsDuration() != time.Minute {
		t.Errorf("%v", p.forked)
	}
	for _, f := range []sandboxes.Fork{{Count: 0, TTL: 1}, {Count: 41, TTL: 1}, {Count: 1},
		{Count: 1, TTL: 1, Prefix: "a b"}} {
		if _, err := b.Fork(t.Context(), id, f, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
