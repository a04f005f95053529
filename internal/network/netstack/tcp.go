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

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// handleTCP receives every TCP packet that belongs to no connection. After false the stack answers
// it with a reset.
func (s *Stack) handleTCP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	flags := header.TCP(pkt.TransportHeader().Slice()).Flags()
	if !flags.Contains(header.TCPFlagSyn) || flags.Contains(header.TCPFlagAck) {
		return false
	}
	to := netip.AddrPortFrom(addressOf(id.LocalAddress), id.LocalPort)
	s.mu.Lock()
	_, again := s.pending[id]
	s.mu.Unlock()
	if again {
		return true
	}
	if refusal, ok := s.judge.Load().Connect("tcp", to, s.names.Of(to.Addr())); !ok {
		s.refuse(refusal)
		return false
	}
	handled, admitted := s.admit(to)
	if !admitted {
		return handled
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.opening.leave()
		s.connections.leave()
		return false
	}
	s.pending[id] = pkt.Clone()
	s.wg.Add(1)
	s.mu.Unlock()
	if s.forward.HandlePacket(id, pkt) { // starts serveTCP
		return true
	}
	s.opened(id)
	s.connections.leave()
	s.wg.Done()
	return true // its checksum or its flags are invalid
}

// admit reserves a place for a connection to addr, or refuses it because of a limit. handled is
// false if the guest is to be told at once.
func (s *Stack) admit(to netip.AddrPort) (handled, admitted bool) {
	refusal := turnstone.Refusal{Protocol: "tcp", Host: s.names.Latest(to.Addr()), Address: to}
	if !s.connections.enter() {
		refusal.Reason = "too many connections at once"
		s.refuseLimit(&s.manyConnections, refusal)
		return false, false
	}
	// The guest's kernel retries after a second if it gets no answer.
	if !s.opening.enter() {
		s.connections.leave()
		refusal.Reason = "too many connections being opened at once: tried again later"
		s.refuseLimit(&s.manyOpening, refusal)
		return true, false
	}
	if !s.opens.Allow() {
		s.opening.leave()
		s.connections.leave()
		refusal.Reason = "too many new connections a second: tried again later"
		s.refuseLimit(&s.manyOpens, refusal)
		return true, false
	}
	return true, true
}

// opened ends the time in which a connection is being opened.
func (s *Stack) opened(id stack.TransportEndpointID) {
	s.mu.Lock()
	syn := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if syn != nil {
		syn.DecRef()
		s.opening.leave()
	}
}

// A tcpConn is a TCP connection of the guest.
type tcpConn struct {
	*guestConn
	s     *Stack
	req   *tcp.ForwarderRequest
	id    stack.TransportEndpointID
	to    netip.AddrPort         // the guest's destination
	names []string               // names that to's address was answered for
	name  atomic.Pointer[string] // the host that the guest has named; nil: none
	check network.Check
	spoke network.GreetingProtocol // protocol of the guest's first bytes, if they were checked
	start time.Time
}

// serveTCP serves a connection from its first packet to its end.
func (s *Stack) serveTCP(req *tcp.ForwarderRequest) {
	defer s.wg.Done()
	defer s.connections.leave()
	id := req.ID()
	c := &tcpConn{s: s, req: req, id: id, to: netip.AddrPortFrom(addressOf(id.LocalAddress),
		id.LocalPort), start: time.Now()}
	c.names = s.names.Of(c.to.Addr())
	c.check = s.judge.Load().Check(c.to, c.names)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if s.interceptor != nil {
		c.serveIntercepted(ctx)
	} else {
		c.serve(ctx)
	}
}

// serve answers the guest only after the host was reached, so that the guest sees the same of an
// unreachable host as without Turnstone.
func (c *tcpConn) serve(ctx context.Context) {
	host, err := c.dial(ctx)
	if err != nil {
		c.fail(err)
		return
	}
	if !c.accept(ctx) {
		_ = host.Close()
		return
	}
	defer c.end()
	defer context.AfterFunc(ctx, func() { _ = host.Close(); c.Reset() })()
	if c.check.First && !c.greet(c.s.limits.hello) {
		network.Reset(host)
		return
	}
	c.carry(ctx, host, c.check.First)
}

// carry serves the connection once it is open on both sides. looked means that the guest's first
// bytes are known.
func (c *tcpConn) carry(ctx context.Context, host net.Conn, looked bool) {
	if !c.check.Strict() {
		c.pump(host, !looked)
		return
	}
	c.s.proxy.Carry(ctx, c.guest(looked), host, network.Target{Address: c.to, Request: c.request})
	_ = host.Close()
}

// guest returns the guest's side for the code that serves the connection.
func (c *tcpConn) guest(looked bool) net.Conn {
	if looked {
		return c.guestConn
	}
	return &lateConn{guestConn: c.guestConn, c: c}
}

// request returns why a request for a host is refused, or "".
func (c *tcpConn) request(host string) string { return c.check.Request(host, c.s.names) }

// counting is the Observer for the parts of a Stack.
type counting struct{ s *Stack }

// Refused implements Observer.
func (o counting) Refused(r turnstone.Refusal) { o.s.refuse(r) }

// Closed implements Observer. The Stack itself reports its connections.
func (o counting) Closed(network.Connection) {}

// serveIntercepted answers the guest at once, because it is not known yet whether the host is
// needed.
func (c *tcpConn) serveIntercepted(ctx context.Context) {
	if !c.accept(ctx) {
		return
	}
	defer c.end()
	defer context.AfterFunc(ctx, c.Reset)()
	// A guest that waits for the host's first bytes is served under the name that it has resolved.
	wait := interceptWait
	if c.check.First {
		wait = c.s.limits.hello
	}
	if !c.greet(wait) {
		return
	}
	to := network.Target{Address: c.to, Name: c.host()}
	if c.check.Strict() {
		to.Request = c.request
	}
	if c.s.interceptor.Intercept(ctx, c.guest(c.spoke != network.GreetingSilent), to) {
		return
	}
	host, err := c.dial(ctx)
	if err != nil {
		c.Reset()
		return
	}
	defer context.AfterFunc(ctx, func() { _ = host.Close() })()
	c.carry(ctx, host, c.spoke != network.GreetingSilent)
}

// A lateConn is a connection whose guest had not sent a byte before the interceptor took it: its
// first bytes are checked when they come. White space before them passes.
type lateConn struct {
	*guestConn
	c      *tcpConn
	looked bool
	err    error // why it was refused
}

// Read implements net.Conn.
func (l *lateConn) Read(b []byte) (int, error) {
	if !l.looked {
		h := l.peekLate(l.c.s.limits.hello, l.c.check.Strict())
		l.looked = h.Protocol != network.GreetingSilent
		if l.looked {
			l.err = l.c.heed(h)
		}
	}
	if l.err != nil {
		return 0, l.err
	}
	return l.guestConn.Read(b)
}

// interceptWait is how long a guest may be silent before it is assumed to wait for the host's first
// bytes.
const interceptWait = time.Second

func (c *tcpConn) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.s.limits.dial)
	defer cancel()
	return c.s.dialer.DialContext(ctx, "tcp", network.HostAddress(c.to).String())
}

// fail answers a connection that the host could not open: with a reset for a refused connection,
// with an ICMP error for an unreachable host, and with silence for silence.
func (c *tcpConn) fail(err error) {
	var timeout net.Error
	silent := errors.As(err, &timeout) && timeout.Timeout()
	unreachable := errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
	if unreachable {
		c.s.mu.Lock()
		syn := c.s.pending[c.id].Clone()
		c.s.mu.Unlock()
		c.s.reject(syn, stack.RejectIPv4WithICMPHostUnreachable)
		syn.DecRef()
	}
	c.req.Complete(!silent && !unreachable)
	c.s.opened(c.id)
}

// accept performs the guest's handshake.
func (c *tcpConn) accept(ctx context.Context) bool {
	queue := &waiter.Queue{}
	done := make(chan struct{})
	c.s.wg.Go(func() { c.watchHandshake(ctx, done) })
	ep, err := c.req.CreateEndpoint(queue)
	close(done)
	c.req.Complete(err != nil)
	c.s.opened(c.id)
	if err != nil {
		return false
	}
	options := ep.SocketOptions()
	options.SetKeepAlive(true) // ends a connection whose guest has forgotten it
	idle, interval := tcpip.KeepaliveIdleOption(10*time.Minute),
		tcpip.KeepaliveIntervalOption(time.Minute)
	_ = ep.SetSockOpt(&idle)
	_ = ep.SetSockOpt(&interval)
	if c.s.connections.used.Load() > c.s.connections.max/2 {
		options.SetReceiveBufferSize(int64(c.s.limits.smallBuffer), true)
		options.SetSendBufferSize(int64(c.s.limits.smallBuffer), true)
	}
	c.guestConn = &guestConn{TCPConn: gonet.NewTCPConn(queue, ep), ep: ep, queue: queue,
		totals: &c.s.counters}
	c.s.counters.connections.Add(1)
	return true
}

// watchHandshake ends a handshake that the guest does not complete in time: CreateEndpoint waits
// for it for two minutes, without a context. It searches for the connection repeatedly, because the
// stack may not know it yet.
func (c *tcpConn) watchHandshake(ctx context.Context, done <-chan struct{}) {
	limit := time.NewTimer(c.s.limits.handshake)
	defer limit.Stop()
	select {
	case <-done:
		return
	case <-ctx.Done():
	case <-limit.C:
	}
	for {
		if ep := c.s.net.FindTransportEndpoint(ipv4.ProtocolNumber, tcp.ProtocolNumber, c.id,
			nic); ep != nil {
			ep.Abort()
		}
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// greet reads the guest's first bytes, and refuses the connection if they are for a host that the
// guest may not reach. The next reader reads them again. The guest must send the first byte within
// the given time (0: any time), and then the rest.
func (c *tcpConn) greet(wait time.Duration) bool {
	h := c.peek(wait, c.s.limits.hello, c.check.Strict())
	c.spoke = h.Protocol
	return c.heed(h) == nil
}

// heed refuses the connection if its greeting is for a host that the guest may not reach.
func (c *tcpConn) heed(h network.Greeting) error {
	if h.Name != "" {
		c.name.Store(&h.Name)
	}
	reason := c.check.Greeting(h, c.s.names)
	if reason == "" {
		return nil
	}
	c.s.refuse(turnstone.Refusal{Protocol: "tcp", Host: c.host(), Address: c.to, Reason: reason})
	c.Reset()
	return net.ErrClosed
}

// host returns the name of the guest's host, if it is known.
func (c *tcpConn) host() string {
	if name := c.name.Load(); name != nil {
		return *name
	}
	if len(c.names) > 0 {
		return c.names[0]
	}
	return ""
}

// pump copies both ways until both have ended. With look, the guest's first bytes are checked
// before they are sent on, while the host may already send.
func (c *tcpConn) pump(host net.Conn, look bool) {
	var both sync.WaitGroup
	both.Go(func() {
		if look && !c.greet(0) {
			network.Reset(host)
			return
		}
		transfer(host, c.guestConn, c.s.buffers)
	})
	transfer(c.guestConn, host, c.s.buffers)
	both.Wait()
	_ = host.Close()
}

// end closes the guest's side and waits for the guest's acknowledgment, so that the connection's
// buffers count as long as they exist.
func (c *tcpConn) end() {
	c.guestConn.finish(c.s.ctx, c.s.limits.linger)
	if c.s.observer != nil {
		c.s.observer.Closed(network.Connection{Start: c.start, End: time.Now(), Protocol: "tcp",
			Host: c.host(), Address: c.to,
			Sent: c.sent.Load(), Received: c.received.Load()})
	}
}
