package netstack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"turnstone.dev/turnstone/internal/network"
)

// maxDatagram is the maximum payload of a UDP datagram, in bytes.
const maxDatagram = 65535

// A flow is a UDP conversation of the guest: between a port of the guest and a port of a host.
type flow struct {
	s              *Stack
	guest          *gonet.UDPConn
	to             netip.AddrPort
	name           string
	start          time.Time
	idle           *time.Timer
	sent, received atomic.Int64
}

// handleUDP receives every datagram that belongs to no flow. It answers refused datagrams like a
// closed port.
func (s *Stack) handleUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	to := netip.AddrPortFrom(addressOf(id.LocalAddress), id.LocalPort)
	names := s.names.Of(to.Addr())
	refusal, ok := s.judge.Load().Connect("udp", to, names)
	if !ok {
		s.refuse(refusal)
		s.reject(pkt, stack.RejectIPv4WithICMPPortUnreachable)
		return true
	}
	if !s.flows.enter() {
		refusal.Reason = "too many UDP flows at once"
		s.refuseLimit(&s.manyFlows, refusal)
		return true
	}
	if !s.opens.Allow() {
		s.flows.leave()
		refusal.Reason = "too many new UDP flows a second"
		s.refuseLimit(&s.manyOpens, refusal)
		return true
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if closed {
		s.flows.leave()
		return true
	}
	queue := &waiter.Queue{}
	first := pkt.Clone()
	ep, err := udp.NewForwarderRequest(s.net, id, pkt.Clone()).CreateEndpoint(queue)
	if err != nil {
		first.DecRef()
		s.flows.leave()
		s.wg.Done()
		return true
	}
	f := &flow{s: s, guest: gonet.NewUDPConn(queue, ep), to: to, name: refusal.Host,
		start: time.Now()}
	go f.serve(first)
	return true
}

func (f *flow) serve(first *stack.PacketBuffer) {
	s := f.s
	defer s.wg.Done()
	defer s.flows.leave()
	defer first.DecRef()
	defer f.guest.Close()
	ctx, cancel := context.WithTimeout(s.ctx, s.limits.dial)
	host, err := s.dialer.DialContext(ctx, "udp", network.HostAddress(f.to).String())
	cancel()
	if err != nil {
		if errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
			s.reject(first, stack.RejectIPv4WithICMPHostUnreachable)
		}
		return
	}
	s.counters.connections.Add(1)
	end := func() {
		_ = host.Close()
		_ = f.guest.Close()
	}
	defer context.AfterFunc(s.ctx, end)()
	f.idle = time.AfterFunc(s.limits.flowIdle, end)
	defer f.idle.Stop()

	var both sync.WaitGroup
	both.Go(func() {
		defer end()
		_ = f.copy(host, f.guest, &f.sent, &s.counters.sent)
	})
	err = f.copy(f.guest, host, &f.received, &s.counters.received)
	end()
	both.Wait()
	if errors.Is(err, syscall.ECONNREFUSED) {
		s.reject(first, stack.RejectIPv4WithICMPPortUnreachable)
	}
	if s.observer != nil {
		s.observer.Closed(network.Connection{Start: f.start, End: time.Now(), Protocol: "udp",
			Host: f.name, Address: f.to,
			Sent: f.sent.Load(), Received: f.received.Load()})
	}
}

// copy carries datagrams until from ends. A datagram that cannot be sent is lost, as datagrams are.
func (f *flow) copy(to, from net.Conn, counts ...*atomic.Int64) error {
	buf := f.s.datagrams.get()
	defer f.s.datagrams.put(buf)
	for {
		n, err := from.Read(*buf)
		if err != nil {
			return err
		}
		f.idle.Reset(f.s.limits.flowIdle)
		if _, err := to.Write((*buf)[:n]); err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, net.ErrClosed) {
				return err
			}
			continue
		}
		for _, c := range counts {
			c.Add(int64(n))
		}
	}
}
