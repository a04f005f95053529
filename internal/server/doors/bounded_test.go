package doors

import (
	"context"
	"net"
	"testing"

	"turnstone.dev/turnstone/internal/server/auth"
)

// taking is a Door that takes connections and keeps them.
type taking struct{ taken chan net.Conn }

func (d taking) Serve(_, _ context.Context, l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		d.taken <- c
	}
}

// TestMCPIsBounded: beyond the bound a caller waits until another one leaves, and an end does not
// wait for callers.
func TestMCPIsBounded(t *testing.T) {
	const most = 2
	taken := make(chan net.Conn, 10)
	m, err := OpenMCP(t.Context(), MCPOptions{Address: "127.0.0.1:0", Connections: most,
		Verifier: auth.Verifier(nil), Make: func(Inside) Door { return taking{taken} }})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- m.Serve(t.Context(), t.Context()) }()
	for range most + 1 {
		c, err := net.Dial("tcp", m.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	first := <-taken
	second := <-taken
	if b := m.listener.(*bounded); len(b.places) != most || len(taken) != 0 {
		t.Errorf("%d places are taken, and %d more connections", len(b.places), len(taken))
	}
	for range 2 { // one close frees one place
		_ = first.Close()
	}
	third := <-taken
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err == nil {
		t.Error("it serves after its end")
	}
	_, _ = second.Close(), third.Close()
}
