package sandbox

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// guest is a machine whose agent is a function of the test.
type guest struct {
	substrate.Sandbox
	done chan struct{}
	near net.Conn
}

func (g guest) Agent() io.ReadWriteCloser           { return g.near }
func (g guest) Frames() (io.ReadWriteCloser, error) { return nil, nil }

// configurable is an agent that knows one command.
type configurable struct {
	wire.SandboxServer
	reseeded bool
	mute     bool                        // it never answers
	says     wire.SandboxConfigureResult // in addition
	got      wire.SandboxConfigureParams
}

func (c *configurable) Configure(ctx context.Context, _ *wire.Conn,
	p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
	c.got = *p
	if c.mute {
		<-ctx.Done()
	}
	res := c.says
	res.Reseeded = c.reseeded
	return &res, nil
}

func (guest) ID() turnstone.SandboxID { return "sb_test" }
func (guest) Scratch() string         { return "scratch" }
func (g guest) Done() <-chan struct{} { return g.done }
func (guest) Err() error              { return nil }
func (guest) Close() error            { return nil }

// sandboxOf returns a sandbox of m whose agent is agent. served is closed when its connection has
// ended.
func sandboxOf(agent *configurable, m substrate.Machine) (s *Sandbox, served chan struct{}) {
	near, far := net.Pipe()
	d := wire.NewDispatcher()
	wire.RegisterSandbox(d, agent)
	served = make(chan struct{})
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
	return &Sandbox{machine: guest{done: make(chan struct{}), near: near}, source: m,
		port: wire.NewPort(near, true), Template: &turnstone.Template{}}, served
}

// TestUnconfirmedReseed checks that a clone that does not confirm its own random numbers is not
// used.
func TestUnconfirmedReseed(t *testing.T) {
	for _, reseeded := range []bool{true, false} {
		agent := &configurable{reseeded: reseeded}
		s, served := sandboxOf(agent, substrate.Machine{})
		err := s.connect(t.Context(),
			&Request{Shape: turnstone.DefaultShape(), Env: []string{"A=b"}})
		if reseeded && err != nil || !reseeded && turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("reseeded %v: %v", reseeded, err)
		}
		_ = s.Close()
		<-served
		got := agent.got
		if len(got.Entropy) < 32 || len(got.MachineID) != 32 || got.Hostname != "sb-test" ||
			got.Network == nil || !slices.Equal(got.Env, []string{"A=b"}) {
			t.Errorf("configured with %+v", got)
		}
	}
}

// TestMuteAgent checks that a guest that was ready and does not answer is reported as such, with a
// hint; an operation that the caller cancels is not blamed on the guest.
func TestMuteAgent(t *testing.T) {
	kernel := substrate.KernelKind{Own: true, File: "/srv/vmlinux"}
	for _, ended := range []bool{false, true} {
		s, served := sandboxOf(&configurable{mute: true},
			substrate.Machine{Kernel: "vmlinux", KernelIs: kernel})
		if err := s.dial(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		limit := 50 * time.Millisecond
		if ended {
			limit = time.Hour
			time.AfterFunc(50*time.Millisecond, cancel) //wait: any moment is right
		}
		err := s.configure(ctx, &Request{Shape: turnstone.DefaultShape()}, limit)
		if dead := turnstone.KindOf(err) == turnstone.KindDead; err == nil || dead == ended ||
			dead && (turnstone.HintOf(err) != kernel.Advice() ||
				!strings.Contains(err.Error(), "does not answer within 50ms")) {
			t.Errorf("ended by the caller %v: %v (%s)", ended, err, turnstone.HintOf(err))
		}
		cancel()
		_ = s.Close()
		<-served
	}
}

// TestGuestsKernel checks that a clone with another kernel than requested is not used, and that a
// clone with too few CPUs is reported.
func TestGuestsKernel(t *testing.T) {
	own := substrate.KernelKind{Own: true, Release: "6.9.0-own", File: "/srv/vmlinux"}
	for _, tt := range []struct {
		what   string
		kernel string
		is     substrate.KernelKind
		says   wire.SandboxConfigureResult
		refuse string
		fewer  string
	}{
		{"the same kernel", "vmlinux", own,
			wire.SandboxConfigureResult{Kernel: "6.9.0-own", CPUs: 2}, "", ""},
		{"another kernel", "vmlinux", own, wire.SandboxConfigureResult{Kernel: "6.9.0-x\x1b",
			CPUs: 2}, "reports that it is 6.9.0-x?, and its image is of 6.9.0-own", ""},
		{"a test kernel", "vmlinux", substrate.KernelKind{Own: true},
			wire.SandboxConfigureResult{Kernel: "6.9.0-tpv"},
			"6.9.0-tpv, a test kernel, and its image names no release", ""},
		{"a test kernel under another name", "vmlinux", own,
			wire.SandboxConfigureResult{Kernel: "6.9.0-own", KernelOpen: true},
			"programs can read the memory of the running kernel", ""},
		{"a kernel of gVisor", "", substrate.KernelKind{},
			wire.SandboxConfigureResult{Kernel: "4.19.0-gvisor", CPUs: 2}, "", ""},
		{"one CPU", "vmlinux", own, wire.SandboxConfigureResult{Kernel: "6.9.0-own", CPUs: 1}, "",
			"1 of 2 CPUs: the guest kernel brings up no more"},
		{"more CPUs than there are", "vmlinux", own,
			wire.SandboxConfigureResult{Kernel: "6.9.0-own", CPUs: 1 << 40}, "", ""},
		{"nobody says how many", "vmlinux", own,
			wire.SandboxConfigureResult{Kernel: "6.9.0-own", CPUs: -1}, "", ""},
	} {
		shape := turnstone.DefaultShape()
		shape.CPUs = 2
		s, served := sandboxOf(&configurable{reseeded: true, says: tt.says},
			substrate.Machine{Kernel: tt.kernel, KernelIs: tt.is, Shape: shape})
		err := s.connect(t.Context(), &Request{Shape: shape})
		switch {
		case tt.refuse == "" && err != nil:
			t.Errorf("%s: %v", tt.what, err)
		case tt.refuse != "" && (turnstone.KindOf(err) != turnstone.KindIntegrity ||
			!strings.Contains(err.Error(), tt.refuse) || turnstone.HintOf(err) != tt.is.Advice()):
			t.Errorf("%s: %v (%s)", tt.what, err, turnstone.HintOf(err))
		case tt.refuse == "" && s.Fewer() != tt.fewer:
			t.Errorf("%s: fewer: %q", tt.what, s.Fewer())
		}
		_ = s.Close()
		<-served
	}
}
