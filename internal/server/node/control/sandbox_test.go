package control_test

import (
	"cmp"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node/control"
	"turnstone.dev/turnstone/sandboxes"
)

func localSpec() sandboxes.Spec {
	return sandboxes.Spec{Image: "fine", Shape: turnstone.DefaultShape()}
}

// TestSandbox follows a sandbox from its creation to its removal.
func TestSandbox(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := sandboxID()
	ask := func(q *v1.CreateSandboxRequest) {
		q.Name, q.Metadata, q.ManagedBy = "box", map[string]string{"for": "tests"}, "test/box"
		q.Env, q.Cwd = map[string]string{"B": "2", "A": "1"}, "/tmp"
		q.Timeout = durationpb.New(time.Minute)
	}
	made, err := s.create(t, ada, id, ask)
	if err != nil {
		t.Fatal(err)
	}
	sb := made.Sandbox
	if sb.SandboxId != id || sb.State != v1.SandboxState_SANDBOX_STATE_READY || sb.Name != "box" ||
		sb.Metadata["for"] != "tests" || sb.ManagedBy != "test/box" || sb.Node != "n1" || sb.Template != "fine" ||
		sb.Expires == nil || sb.Machine.Cpus != 1 {
		t.Fatalf("%v", sb)
	}
	st, err := attest.Open(t.Context(), made.Channel.Attestation)
	if err != nil || string(st.Sandbox) != id || len(st.Clients) != 1 ||
		st.Clients[0] != ada.pair.Public || string(st.ServerKey[:]) !=
		string(made.Channel.ServerPublicKey) {
		t.Fatalf("%+v %v", st, err)
	}
	if made.Channel.Path != "/turnstone/v1/sandboxes/"+id+"/channel" {
		t.Fatal(made.Channel.Path)
	}
	// the same again is the same sandbox, with a new nonce
	again, err := s.create(t, ada, id, ask)
	if err != nil || again.Sandbox.Created.AsTime() != sb.Created.AsTime() {
		t.Fatalf("%v %v", again, err)
	}
	_, err = s.create(t, ada, id, nil)
	want(t, "another request", err, turnstone.KindInvalid)

	paused, err := call(t, s.PauseSandbox, &v1.NodeServicePauseSandboxRequest{
		Principal: ada.Principal, Request: &v1.PauseSandboxRequest{SandboxId: id}})
	if err != nil || !paused.Sandbox.Paused {
		t.Fatalf("%v %v", paused, err)
	}
	_, err = s.connect(t, ada, id)
	want(t, "a paused sandbox", err, turnstone.KindUnavailable)
	resumed, err := call(t, s.ResumeSandbox, &v1.NodeServiceResumeSandboxRequest{
		Principal: ada.Principal, Request: &v1.ResumeSandboxRequest{SandboxId: id}})
	if err != nil || resumed.Sandbox.Paused {
		t.Fatalf("%v %v", resumed, err)
	}
	later, err := call(t, s.SetSandboxTimeout, &v1.NodeServiceSetSandboxTimeoutRequest{
		Principal: ada.Principal, Request: &v1.SetSandboxTimeoutRequest{SandboxId: id,
			Timeout: durationpb.New(time.Hour)}})
	if err != nil || time.Until(later.Sandbox.Expires.AsTime()) < 30*time.Minute {
		t.Fatalf("%v %v", later, err)
	}
	if _, err = s.connect(t, ada, id); err != nil {
		t.Fatal(err)
	}
	gone, err := s.remove(t, ada, id)
	if err != nil || gone.Sandbox.State != v1.SandboxState_SANDBOX_STATE_STOPPED ||
		gone.Sandbox.Reason != v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED {
		t.Fatalf("%v %v", gone, err)
	}
	_, err = s.remove(t, ada, id)
	want(t, "removed", err, turnstone.KindNotFound)
}

func (s *scene) connect(t *testing.T, p person, id string, grant ...byte) (
	*v1.ConnectSandboxResponse, error) {
	t.Helper()
	c := p.client()
	c.Grant = grant
	return call(t, s.ConnectSandbox, &v1.NodeServiceConnectSandboxRequest{Principal: p.Principal,
		Request: &v1.ConnectSandboxRequest{SandboxId: id, Client: c}})
}

func (s *scene) remove(t *testing.T, p person, id string) (*v1.DeleteSandboxResponse, error) {
	t.Helper()
	return call(t, s.DeleteSandbox, &v1.NodeServiceDeleteSandboxRequest{Principal: p.Principal,
		Request: &v1.DeleteSandboxRequest{SandboxId: id}})
}

// TestConcurrentCreation: a repetition that comes too early waits for the first.
func TestConcurrentCreation(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := sandboxID()
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if r, err := s.create(t, ada, id, nil); err != nil || r.Sandbox.SandboxId != id {
				t.Errorf("%v %v", r, err)
			}
		})
	}
	wg.Wait()
}

// TestFailedCreation leaves nothing, and the ID can be used again.
func TestFailedCreation(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := sandboxID()
	_, err := s.create(t, ada, id, func(q *v1.CreateSandboxRequest) {
		q.Source = &v1.CreateSandboxRequest_Template{Template: "broken"}
	})
	want(t, "a broken machine", err, turnstone.KindUnavailable)
	for name, change := range map[string]func(*v1.CreateSandboxRequest){
		"a malformed rule": func(q *v1.CreateSandboxRequest) {
			q.Network = &v1.Network{Allow: []string{"1.2.3.4/99"}}
		},
		"rules without a network": func(q *v1.CreateSandboxRequest) {
			q.Network = &v1.Network{Mode: v1.NetworkMode_NETWORK_MODE_OFF,
				Allow: []string{"example.com"}}
		},
		"a name like an ID":    func(q *v1.CreateSandboxRequest) { q.Name = "sb_box" },
		"an unusable key":      func(q *v1.CreateSandboxRequest) { q.Client.ClientPublicKey = make([]byte, 32) },
		"more CPUs than a max": func(q *v1.CreateSandboxRequest) { q.Machine.Cpus = 65 },
	} {
		_, err := s.create(t, ada, id, change)
		want(t, name, err, turnstone.KindInvalid)
	}
	for _, rule := range []string{"127.0.0.1:22", "169.254.169.254", "169.254.1.1", "10.0.0.5"} {
		_, err := s.create(t, ada, id, func(q *v1.CreateSandboxRequest) {
			q.Network = &v1.Network{Allow: []string{"example.com", rule}}
		})
		want(t, rule, err, turnstone.KindInvalid)
		if err != nil && !strings.Contains(err.Error(), rule) {
			t.Errorf("%q does not name %s", err, rule)
		}
	}
	if _, err := s.create(t, ada, id, nil); err != nil {
		t.Fatal(err)
	}
}

// TestAbandonedCreation: when the caller gives up, nothing remains.
func TestAbandonedCreation(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := sandboxID()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.CreateSandbox(ctx, connect.NewRequest(&v1.NodeServiceCreateSandboxRequest{
			Principal: ada.Principal, SandboxId: id, Request: &v1.CreateSandboxRequest{
				Client: ada.client(), Source: &v1.CreateSandboxRequest_Template{Template: "slow"}}}))
		done <- err
	}()
	st, err := s.set.Of(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is not being created", func() bool {
		i, err := st.Sandboxes.Get(turnstone.SandboxID(id))
		return err == nil && i.State == "creating"
	})
	stop()
	want(t, "abandoned", api.FromConnect(<-done), turnstone.KindCanceled)
	eventually(t, "it remains", func() bool {
		_, err := st.Sandboxes.Get(turnstone.SandboxID(id))
		return turnstone.KindOf(err) == turnstone.KindNotFound
	})
	if _, err := s.create(t, ada, id, nil); err != nil {
		t.Fatal(err)
	}
}

// TestTenants: what is another tenant's does not exist, with the same words as for nothing.
func TestTenants(t *testing.T) {
	s, ada, eve := newScene(t, nil), of("ada"), of("eve")
	id := s.made(t, ada, nil).SandboxId
	s.made(t, eve, nil) // so that both tenants have state
	nothing := sandboxID()
	for _, p := range []person{eve, of("nobody"), of("local")} {
		p.pair = ada.pair // even with the right key
		for name, f := range map[string]func(id string) error{
			"connect": func(id string) error { _, err := s.connect(t, p, id); return err },
			"delete":  func(id string) error { _, err := s.remove(t, p, id); return err },
			"pause": func(id string) error {
				_, err := call(t, s.PauseSandbox, &v1.NodeServicePauseSandboxRequest{
					Principal: p.Principal, Request: &v1.PauseSandboxRequest{SandboxId: id}})
				return err
			},
			"fork": func(id string) error {
				_, err := call(t, s.ForkSandbox, &v1.NodeServiceForkSandboxRequest{
					Principal: p.Principal, SandboxIds: []string{sandboxID()},
					Request: &v1.ForkSandboxRequest{SandboxId: id,
						Clients: []*v1.ChannelClient{p.client()}}})
				return err
			},
			"snapshot": func(id string) error {
				_, err := call(t, s.SnapshotSandbox, &v1.NodeServiceSnapshotSandboxRequest{
					Principal: p.Principal, SnapshotId: snapshotID(),
					Request: &v1.SnapshotSandboxRequest{SandboxId: id}})
				return err
			},
			"expose": func(id string) error {
				_, err := call(t, s.ExposePort, &v1.NodeServiceExposePortRequest{
					Principal: p.Principal, Request: &v1.ExposePortRequest{SandboxId: id, Port: 80}})
				return err
			},
		} {
			theirs, none := f(id), f(nothing)
			want(t, name, theirs, turnstone.KindNotFound)
			if none == nil || strings.ReplaceAll(theirs.Error(), id, "") !=
				strings.ReplaceAll(none.Error(), nothing, "") {
				t.Errorf("%s: %q and %q", name, theirs, none)
			}
		}
		// nor can an ID be taken over
		_, err := s.create(t, p, id, nil)
		want(t, "its ID", err, turnstone.KindInvalid)
	}
	if r, err := s.connect(t, ada, id); err != nil || r.Channel == nil {
		t.Fatal(err)
	}
}

// TestLocalSandbox: a sandbox of a local command is the operator's, whom only a node that shares its
// process with the controller believes.
func TestLocalSandbox(t *testing.T) {
	for _, trust := range []bool{true, false} {
		s := newScene(t, func(o *control.Options) { o.TrustOperator = trust })
		st, err := s.set.Of(t.Context(), "local")
		if err != nil {
			t.Fatal(err)
		}
		i, err := st.Sandboxes.Create(t.Context(), localSpec(), nil)
		if err != nil {
			t.Fatal(err)
		}
		operator := person{&v1.Principal{Tenant: "local", Subject: "0"}, of("").pair}
		_, err = s.connect(t, operator, string(i.ID))
		if (err == nil) != trust {
			t.Errorf("trust %t: %v", trust, err)
		}
		_, err = s.connect(t, of("local"), string(i.ID))
		want(t, "a token of the tenant", err, turnstone.KindInvalid)
	}
}

// TestFork makes clones, and again those that are missing.
func TestFork(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := s.made(t, ada, nil).SandboxId
	q := &v1.ForkSandboxRequest{SandboxId: id, Clients: []*v1.ChannelClient{ada.client(),
		ada.client(), ada.client()}}
	r := &v1.NodeServiceForkSandboxRequest{Principal: ada.Principal, Request: q,
		SandboxIds: []string{sandboxID(), sandboxID(), sandboxID()}}
	made, err := call(t, s.ForkSandbox, r)
	if err != nil {
		t.Fatal(err)
	}
	for n, c := range made.Clones {
		if c.Sandbox.SandboxId != r.SandboxIds[n] || c.Sandbox.ParentId != id || c.Channel == nil {
			t.Fatalf("%d: %v", n, c)
		}
	}
	if _, err := s.remove(t, ada, r.SandboxIds[1]); err != nil {
		t.Fatal(err)
	}
	again, err := call(t, s.ForkSandbox, r)
	if err != nil || len(again.Clones) != 3 || again.Clones[0].Sandbox.Created.AsTime() !=
		made.Clones[0].Sandbox.Created.AsTime() {
		t.Fatalf("%v %v", again, err)
	}
	r.Request = &v1.ForkSandboxRequest{SandboxId: id, Secrets: true, Clients: q.Clients}
	_, err = call(t, s.ForkSandbox, r)
	want(t, "another request", err, turnstone.KindInvalid)
}

// TestSnapshot keeps a machine, and starts another from it after the first is gone.
func TestSnapshot(t *testing.T) {
	s, ada, bob := newScene(t, nil), of("team"), of("team")
	id, snap := s.made(t, ada, nil).SandboxId, snapshotID()
	r := &v1.NodeServiceSnapshotSandboxRequest{Principal: ada.Principal, SnapshotId: snap,
		Request: &v1.SnapshotSandboxRequest{SandboxId: id}}
	for range 2 {
		k, err := call(t, s.SnapshotSandbox, r)
		if err != nil || k.Snapshot.SnapshotId != snap || k.Snapshot.Size == 0 {
			t.Fatalf("%v %v", k, err)
		}
	}
	if _, err := s.remove(t, ada, id); err != nil {
		t.Fatal(err)
	}
	s.stop(t)
	s.start(t)
	from := func(q *v1.CreateSandboxRequest) {
		q.Source, q.Machine = &v1.CreateSandboxRequest_SnapshotId{SnapshotId: snap}, nil
	}
	sb := s.made(t, ada, from)
	if sb.SnapshotId != snap || sb.Template != "fine" {
		t.Fatalf("%v", sb)
	}
	_, err := s.create(t, bob, sandboxID(), from)
	want(t, "another key", err, turnstone.KindInvalid)
	_, err = s.create(t, of("eve"), sandboxID(), from)
	want(t, "another tenant", err, turnstone.KindNotFound)
	_, err = s.create(t, ada, sandboxID(), func(q *v1.CreateSandboxRequest) {
		from(q)
		q.Env = map[string]string{"A": "1"}
	})
	want(t, "an environment", err, turnstone.KindInvalid)
	remove := &v1.NodeServiceDeleteSnapshotRequest{Principal: of("eve").Principal,
		Request: &v1.DeleteSnapshotRequest{SnapshotId: snap}}
	_, err = call(t, s.DeleteSnapshot, remove)
	want(t, "another tenant's", err, turnstone.KindNotFound)
	remove.Principal, remove.Request.Client = ada.Principal, nil
	if _, err := call(t, s.DeleteSnapshot, remove); err != nil {
		t.Fatal(err)
	}
	_, err = call(t, s.DeleteSnapshot, remove)
	want(t, "removed", err, turnstone.KindNotFound)
}

// TestRoom: a node refuses what it has no room for, and says when to try again.
func TestRoom(t *testing.T) {
	s := newScene(t, func(o *control.Options) {
		o.Capacity = turnstone.Machine{CPUs: 2, Memory: 8 << 30, Disk: 1 << 40}
		o.CPUShares = 1
	})
	ada := of("ada")
	first := s.made(t, ada, nil)
	s.made(t, of("bob"), nil)
	_, err := s.create(t, ada, sandboxID(), nil)
	want(t, "no room", err, turnstone.KindExhausted)
	if api.RetryAfter(err) <= 0 || !api.Retryable(err) {
		t.Fatalf("%v: when?", err)
	}
	n, err := call(t, s.GetNode, &v1.GetNodeRequest{})
	if err != nil || n.Node.Used.Cpus != 2 || n.Node.Capacity.Cpus != 2 ||
		n.Node.Used.Memory != 2<<30 {
		t.Fatalf("%v %v", n, err)
	}
	if _, err := s.remove(t, ada, first.SandboxId); err != nil {
		t.Fatal(err)
	}
	s.made(t, ada, nil)
}

// TestPorts reaches a server in a sandbox, also after a restart of the node.
func TestPorts(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := s.made(t, ada, nil).SandboxId
	ask := &v1.NodeServiceExposePortRequest{Principal: ada.Principal,
		Request: &v1.ExposePortRequest{SandboxId: id, Port: 80}}
	r, err := call(t, s.ExposePort, ask)
	if err != nil {
		t.Fatal(err)
	}
	reach := func() error {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.Url, "http://"))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 5))
		return err
	}
	if err := reach(); err != nil {
		t.Fatal(err)
	}
	open, err := net.Dial("tcp", strings.TrimPrefix(r.Url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	again, err := call(t, s.ExposePort, ask)
	if err != nil || again.Url != r.Url {
		t.Fatalf("%v %v", again, err)
	}
	if _, err := open.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(open, make([]byte, 5)); err != nil {
		t.Fatalf("a connection ended when its port was exposed again: %v", err)
	}
	for n := range 15 {
		if _, err := call(t, s.ExposePort, &v1.NodeServiceExposePortRequest{
			Principal: ada.Principal, Request: &v1.ExposePortRequest{SandboxId: id,
				Port: uint32(100 + n), Ttl: durationpb.New(time.Second)}}); err != nil {
			t.Fatal(err)
		}
	}
	more := &v1.NodeServiceExposePortRequest{Principal: ada.Principal,
		Request: &v1.ExposePortRequest{SandboxId: id, Port: 200}}
	eventually(t, "ports whose time is over are counted", func() bool {
		_, err := call(t, s.ExposePort, more)
		return err == nil
	})
	s.stop(t)
	if reach() == nil {
		t.Fatal("it is reachable without a node")
	}
	s.start(t)
	if err := reach(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.remove(t, ada, id); err != nil {
		t.Fatal(err)
	}
	if reach() == nil {
		t.Fatal("it is reachable without a sandbox")
	}
	off := s.made(t, ada, func(q *v1.CreateSandboxRequest) {
		q.Network = &v1.Network{Mode: v1.NetworkMode_NETWORK_MODE_OFF}
	})
	ask.Request.SandboxId = off.SandboxId
	if _, err := call(t, s.ExposePort, ask); err != nil { // its loopback is reached
		t.Errorf("without a network: %v", err)
	}
	s.stop(t)
	s.o.Expose = ""
	s.start(t)
	_, err = call(t, s.ExposePort, ask)
	want(t, "not configured", err, turnstone.KindUnavailable)
	if turnstone.HintOf(err) == "" {
		t.Error("without a hint")
	}
}

// TestPortsMove: after a restart with another address in the settings an exposed port is there, with its
// number, and without an address it is nowhere. With the first address it is where it was.
func TestPortsMove(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := s.made(t, ada, nil).SandboxId
	ask := &v1.NodeServiceExposePortRequest{Principal: ada.Principal,
		Request: &v1.ExposePortRequest{SandboxId: id, Port: 80}}
	r, err := call(t, s.ExposePort, ask)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(r.Url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	first := s.o.Expose
	for _, host := range []string{"127.0.0.2", "", first} {
		s.stop(t)
		s.o.Expose = host
		s.start(t)
		c, err := net.Dial("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.2"), port))
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != (host != "") {
			t.Errorf("node.expose = %q: %v", host, err)
		}
		if host == "" {
			continue
		}
		again, err := call(t, s.ExposePort, ask)
		if err != nil || again.Url != "http://"+net.JoinHostPort(host, port) {
			t.Errorf("node.expose = %q: exposed again: %v %v", host, again, err)
		}
	}
}

// TestPortShares: a tenant that exposes ports until the node refuses more leaves some for another one, and
// has its own again after a restart.
func TestPortShares(t *testing.T) {
	s, flood, quiet := newScene(t, nil), of("flood"), of("quiet")
	s.stop(t)
	s.o.Ports = 8
	s.start(t)
	expose := func(who person, id string, port int) error {
		_, err := call(t, s.ExposePort, &v1.NodeServiceExposePortRequest{Principal: who.Principal,
			Request: &v1.ExposePortRequest{SandboxId: id, Port: uint32(port)}})
		return err
	}
	id, other := s.made(t, flood, nil).SandboxId, s.made(t, quiet, nil).SandboxId
	for port := 1; port <= 4; port++ {
		if err := expose(flood, id, port); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "more than half", expose(flood, id, 5), turnstone.KindExhausted)
	for _, port := range []int{1, 2} {
		if err := expose(quiet, other, port); err != nil {
			t.Errorf("nothing is left for another tenant: %v", err)
		}
	}
	s.stop(t)
	s.start(t)
	if err := expose(flood, id, 4); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	want(t, "more after a restart", expose(flood, id, 5), turnstone.KindExhausted)
}
