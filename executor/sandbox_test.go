package executor

import (
	"context"
	"net"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	wire "turnstone.dev/turnstone/oldwire"
)

// guest is a machine whose agent is a function of the test.
type guest struct {
	substrate.Sandbox
	done chan struct{}
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
		served := make(chan error, 1)
		var got wire.ConfigureParams
		go func() {
			served <- wire.Serve(context.Background(), far, func(_ context.Context, c *wire.Call) error {
				if err := c.Decode(&got); err != nil {
					return err
				}
				return c.Reply(wire.ConfigureResult{Reseeded: reseeded})
			})
		}()
		client, err := wire.NewClient(near)
		if err != nil {
			t.Fatal(err)
		}
		err = configure(t.Context(), &sandbox{Sandbox: guest{done: make(chan struct{})}, client: client}, turnstone.DefaultShape())
		if reseeded && err != nil || !reseeded && turnstone.KindOf(err) != turnstone.Integrity {
			t.Errorf("reseeded %v: %v", reseeded, err)
		}
		_ = client.Close()
		<-served
		if len(got.Entropy) < 32 || len(got.MachineID) != 32 || got.Hostname != "sb-test" || got.Network == nil {
			t.Errorf("configured with %+v", got)
		}
	}
}
