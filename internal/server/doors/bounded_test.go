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
		Proxies:  []string{"127.0.0.0/8"},
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

// TestOneAddress: an address gets its part of the places, and no more; others get theirs.
func TestOneAddress(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := bound(inner, 2*partOfAddress, nil)
	taken := make(chan net.Conn, 10)
	go func() { _ = taking{taken}.Serve(t.Context(), t.Context(), b) }()
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial("127.0.0.1")
	first := <-taken
	dial("127.0.0.1")
	<-taken
	if _, err := dial("127.0.0.1").Read(make([]byte, 1)); err == nil {
		t.Error("one more connection of an address is open")
	}
	dial("127.0.0.2")
	<-taken
	_ = first.Close()
	dial("127.0.0.1")
	<-taken
	if len(taken) != 0 || b.Close() != nil {
		t.Errorf("%d more", len(taken))
	}
	for text, want := range map[string]string{"[2001:db8::1%eth0]:1": "2001:db8::/64",
		"[::ffff:192.0.2.1]:1": "192.0.2.1/32", "@": "invalid Prefix"} {
		if got := b.addressOf(from{text: text}).String(); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	text string
}

func (f from) RemoteAddr() net.Addr { return f }
func (from) Network() string        { return "tcp" }
func (f from) String() string       { return f.text }
