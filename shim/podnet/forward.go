package podnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A Dialer opens a connection to a TCP port of the sandbox's loopback.
type Dialer func(ctx context.Context, port uint16) (io.ReadWriteCloser, error)

// maxForwarded bounds the connections that are forwarded at once.
const maxForwarded = 256

// Forward connects what is dialled inside the pod's network namespace, such as by containerd for a
// port-forward, to the same port of the sandbox. Nothing from outside of the namespace arrives
// there: the pod's interface is redirected. It needs Linux 5.9 (bpf_sk_lookup), and ends with ctx.
func (n *Network) Forward(ctx context.Context, dial Dialer) error {
	return n.Within(func() error {
		var config net.ListenConfig
		config.SetMultipathTCP(false) // connections are steered to TCP sockets only
		l, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		release, err := steer(l.(*net.TCPListener), n.ns)
		if err != nil {
			_ = l.Close()
			return err
		}
		context.AfterFunc(ctx, func() {
			_ = l.Close()
			release()
		})
		go serve(ctx, l, dial)
		return nil
	})
}

// steer makes every TCP connection inside the namespace one of l, with the port that was dialled.
func steer(l *net.TCPListener, ns int) (_ func(), err error) {
	var opened []io.Closer
	release := func() {
		for _, c := range opened {
			_ = c.Close()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockMap, KeySize: 4, ValueSize: 8,
		MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("map of sockets: %w", err)
	}
	opened = append(opened, sockets)
	file, err := l.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := sockets.Put(uint32(0), uint64(file.Fd())); err != nil {
		return nil, fmt.Errorf("map of sockets: %w", err)
	}
	const protocol = 12 // offset in struct bpf_sk_lookup (linux/bpf.h)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SkLookup,
		AttachType: ebpf.AttachSkLookup, License: "Dual BSD/GPL", Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R2, asm.R1, protocol, asm.Word),
			asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, "pass"),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, sockets.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "pass"),
			asm.Mov.Reg(asm.R7, asm.R0),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.R0),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnSkAssign.Call(),
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.FnSkRelease.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"), // SK_PASS
			asm.Return(),
		}})
	if err != nil {
		return nil, fmt.Errorf("program: %w", err)
	}
	opened = append(opened, program)
	at, err := link.AttachNetNs(ns, program)
	if err != nil {
		return nil, fmt.Errorf("attaching the program: %w", err)
	}
	opened = append(opened, at)
	return release, nil
}

// serve connects the connections of l to the sandbox.
func serve(ctx context.Context, l net.Listener, dial Dialer) {
	slots := make(chan struct{}, maxForwarded)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			port := c.LocalAddr().(*net.TCPAddr).Port
			to, err := dial(ctx, uint16(port))
			if err != nil {
				return // the caller sees the end of the connection
			}
			relay(ctx, c, to)
		}()
	}
}

// relay copies both ways until both have ended.
func relay(ctx context.Context, a net.Conn, b io.ReadWriteCloser) {
	defer context.AfterFunc(ctx, func() { _, _ = a.Close(), b.Close() })()
	defer b.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(b, a)
		if w, ok := b.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite()
		}
	})
	_, _ = io.Copy(a, b)
	if w, ok := a.(*net.TCPConn); ok {
		_ = w.CloseWrite()
	}
	both.Wait()
}
