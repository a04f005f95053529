package cdp_test

import (
	"context"
	"net"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cdp"
	"turnstone.dev/turnstone/internal/cdp/cdptest"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/sandboxes"
)

// agents are sandboxes that are agents in this process, without machines.
type agents struct {
	cdp.Backend
	ids    []turnstone.SandboxID
	agents map[turnstone.SandboxID]*agent.Agent
}

func (a *agents) List(context.Context) ([]sandboxes.Info, error) {
	var all []sandboxes.Info
	for _, id := range a.ids {
		all = append(all, sandboxes.Info{ID: id, Image: "test", State: sandboxes.StateReady})
	}
	return all, nil
}

func (a *agents) Get(id turnstone.SandboxID) (sandboxes.Info, error) {
	if a.agents[id] == nil {
		return sandboxes.Info{}, turnstone.Errorf("test", turnstone.KindNotFound, "",
			"no such sandbox")
	}
	return sandboxes.Info{ID: id, Image: "test", State: sandboxes.StateReady}, nil
}

func (a *agents) Dial(_ context.Context, id turnstone.SandboxID) (net.Conn, error) {
	if _, err := a.Get(id); err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	a.agents[id].ServeConn(far)
	return near, nil
}

// TestStockClient drives two agents with a client written for browsers.
func TestStockClient(t *testing.T) {
	if testing.Short() && !cdptest.Installed() {
		t.Skip("downloads an npm package; run without -short")
	}
	b := &agents{agents: map[turnstone.SandboxID]*agent.Agent{}}
	for range 2 {
		a, err := agent.New(agent.Options{RunDir: t.TempDir(), Cwd: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Close() }()
		id := turnstone.NewSandboxID()
		b.ids, b.agents[id] = append(b.ids, id), a
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	token, served := loopback.NewToken(), make(chan error, 1)
	go func() { served <- cdp.NewServer(cdp.Options{Backend: b, Token: token}).Serve(ctx, l) }()
	out, err := cdptest.Client(ctx, "testdata/client.js", port, token,
		string(b.ids[0]), string(b.ids[1]))
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
