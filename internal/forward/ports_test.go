package forward_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/forward"
	"turnstone.dev/turnstone/internal/guest/agent"
)

// TestPorts reaches a server of the loopback through an agent, by more connections than a channel takes, and again
// after the channels were lost. A port that is near needs no channel, and errors of other kinds count.
func TestPorts(t *testing.T) {
	a, err := agent.New(agent.Options{RunDir: t.TempDir(), Cwd: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	l := listen(t)
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer func() { _ = c.Close() }(); _, _ = io.Copy(c, c) }()
		}
	}()
	var mu sync.Mutex
	var channels []io.Closer
	near := turnstone.KindUnavailable
	p := &forward.Ports{Open: func(context.Context) (io.ReadWriteCloser, error) {
		ours, theirs := net.Pipe()
		a.ServeConn(theirs)
		mu.Lock()
		defer mu.Unlock()
		channels = append(channels, ours)
		return ours, nil
	}, Near: func(context.Context, uint16) (net.Conn, error) {
		if near == "" {
			return net.Dial("tcp", l.Addr().String())
		}
		return nil, turnstone.Errorf("test", near, "port", "nothing listens")
	}}
	defer p.Close()
	const many = 60
	for round := range 3 {
		var all sync.WaitGroup
		conns := make([]io.ReadWriteCloser, many)
		for n := range conns {
			all.Go(func() {
				c, err := p.Connect(t.Context(), port)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				conns[n] = c
				text := []byte(fmt.Sprintf("connection %02d", n))
				_, _ = c.Write(text)
				b := make([]byte, len(text))
				if _, err := io.ReadFull(c, b); err != nil || string(b) != string(text) {
					t.Errorf("round %d: %q %v", round, b, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		for _, c := range conns {
			_ = c.Close()
			_ = c.Close() // its place is left once
		}
		mu.Lock()
		if want := []int{3, 3, 6}[round]; len(channels) != want { // places are free again; those of the last were lost
			t.Errorf("round %d: %d channels", round, len(channels))
		}
		if round == 1 {
			for _, c := range channels {
				_ = c.Close()
			}
		}
		mu.Unlock()
	}
	near = turnstone.KindCanceled
	if _, err := p.Connect(t.Context(), port); turnstone.KindOf(err) != near {
		t.Errorf("canceled: %v", err)
	}
	near = ""
	c, err := p.Connect(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if len(channels) != 6 {
		t.Errorf("%d channels", len(channels))
	}
}
