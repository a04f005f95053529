package sandboxtest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
)

// A Guest is a substrate.Sandbox whose agent runs in this process. It does not end with its
// agent's channel.
type Guest struct {
	Far net.Conn // the agent's end of its channel

	id     turnstone.SandboxID
	near   net.Conn
	agent  *agent.Agent
	served chan struct{}
	free   func()

	once sync.Once
	done chan struct{}
	err  error // valid when done is closed
	left error // of the agent's end
}

// Boot starts an agent. Its channel is what channel makes of Far; nil: Far.
func Boot(o agent.Options, channel func(net.Conn) io.ReadWriteCloser) (*Guest, error) {
	a, err := agent.New(o)
	if err != nil {
		return nil, err
	}
	g := &Guest{id: turnstone.NewSandboxID(), agent: a, served: make(chan struct{}),
		free: func() {}, done: make(chan struct{})}
	g.near, g.Far = net.Pipe()
	var far io.ReadWriteCloser = g.Far
	if channel != nil {
		far = channel(g.Far)
	}
	go func() {
		defer close(g.served)
		_ = a.Serve(context.Background(), far)
	}()
	return g, nil
}

func (g *Guest) ID() turnstone.SandboxID   { return g.id }
func (g *Guest) Agent() io.ReadWriteCloser { return g.near }
func (g *Guest) Scratch() string           { return "scratch" }
func (g *Guest) Done() <-chan struct{}     { return g.done }

// Err implements substrate.Sandbox.
func (g *Guest) Err() error {
	select {
	case <-g.done:
		return g.err
	default:
		return nil
	}
}

// Close implements substrate.Sandbox. It returns when the agent and its processes have ended.
func (g *Guest) Close() error {
	g.end(nil)
	return g.left
}

// Die makes the machine end by itself, because of err.
func (g *Guest) Die(err error) { g.end(err) }

func (g *Guest) end(err error) {
	g.once.Do(func() {
		g.err = err
		close(g.done)
		_ = errors.Join(g.near.Close(), g.Far.Close())
		<-g.served
		g.left = g.agent.Close()
		g.free()
	})
}

// Pause implements substrate.Pauser: the agent runs no step while it is suspended.
func (g *Guest) Pause(ctx context.Context) error { return ctx.Err() }

// Resume implements substrate.Pauser.
func (g *Guest) Resume(ctx context.Context) error { return ctx.Err() }

// hide puts the sign of a removed file at path: the agent exports a socket as a whiteout.
func hide(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }
