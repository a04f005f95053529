package executor

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/template"
	"turnstone.dev/turnstone/wire"
)

// guest is a machine whose agent is a function of the test.
type guest struct {
	substrate.Sandbox
	done chan struct{}
	near net.Conn
}

func (g guest) Agent() io.ReadWriteCloser  { return g.near }
func (g guest) Frames() io.ReadWriteCloser { return nil }

// configurable is an agent that knows one command.
type configurable struct {
	wire.SandboxServer
	reseeded bool
	got      wire.SandboxConfigureParams
}

func (c *configurable) Configure(_ context.Context, _ *wire.Conn, p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
	c.got = *p
	return &wire.SandboxConfigureResult{Reseeded: c.reseeded}, nil
}

func (guest) ID() turnstone.SandboxID { return "sb_test" }
func (guest) Scratch() string         { return "scratch" }
func (g guest) Done() <-chan struct{} { return g.done }
func (guest) Err() error              { return nil }
func (guest) Close() error            { return nil }

// TestUnconfirmedReseed: a clone that does not say that its random numbers are
// its own is not used.
func TestUnconfirmedReseed(t *testing.T) {
	for _, reseeded := range []bool{true, false} {
		near, far := net.Pipe()
		agent := &configurable{reseeded: reseeded}
		d := wire.NewDispatcher()
		wire.RegisterSandbox(d, agent)
		served := make(chan struct{})
		go func() {
			defer close(served)
			link, err := wire.NewPort(far, false).Link()
			if err != nil {
				return
			}
			if s, err := link.Accept(); err == nil {
				wire.NewConn(s, wire.Options{Dispatcher: d}).Wait()
			}
			_ = link.Close()
		}()
		s := &Sandbox{machine: guest{done: make(chan struct{}), near: near}, port: wire.NewPort(near, true), Template: &template.Template{}}
		err := s.connect(t.Context(), &plan{shape: turnstone.DefaultShape(), env: []string{"A=b"}})
		if reseeded && err != nil || !reseeded && turnstone.KindOf(err) != turnstone.Integrity {
			t.Errorf("reseeded %v: %v", reseeded, err)
		}
		_ = s.Close()
		<-served
		got := agent.got
		if len(got.Entropy) < 32 || len(got.MachineID) != 32 || got.Hostname != "sb-test" || got.Network == nil || !slices.Equal(got.Env, []string{"A=b"}) {
			t.Errorf("configured with %+v", got)
		}
	}
}
