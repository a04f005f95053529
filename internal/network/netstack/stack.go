// Package netstack is the outside of a sandbox's network card: a router, a name server and a
// firewall in user space, without an interface on the host and without rights. It reads the guest's
// Ethernet frames, which are untrusted, and opens ordinary connections of the host for what the
// policy allows.
package netstack

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/proxy"
)

// nic is the number of the stack's only card.
const nic = 1

// A Stack is a sandbox's network. Its methods are safe for concurrent use.
type Stack struct {
	limits      limits
	judge       atomic.Pointer[network.Judge]
	isOwn       func(netip.Addr) bool // an address belongs to the host
	gateway     netip.Addr
	dns         netip.Addr
	observer    network.Observer
	interceptor network.Interceptor
	dialer      network.Dialer
	resolver    network.Resolver
	proxy       *proxy.Proxy // for connections whose requests are checked

	net      *stack.Stack
	link     *link
	forward  *tcp.Forwarder
	names    *network.Names
	cache    *lookupCache
	counters counters

	buffers, datagrams *pool

	tell                                         *rate.Limiter
	opens                                        *rate.Limiter
	lookupRate                                   *rate.Limiter
	zones                                        *zones
	connections, opening, flows, asking, dnsConn gate
	manyConnections, manyOpening, manyFlows,
	manyOpens, manyLookups, manyZone burst

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines except Serve's

	mu sync.Mutex
	// connections that are being opened, with their SYN
	pending map[stack.TransportEndpointID]*stack.PacketBuffer
	// closed when the running Serve has returned; nil: none runs
	serving chan struct{}
	closed  bool
}

// New creates the network of a sandbox. The caller must Close it. An error is of kind Invalid and
// names the invalid rule.
func New(opts Options) (*Stack, error) {
	return newStack(opts, defaultLimits(),
		net.InterfaceAddrs)
}

func newStack(opts Options, lim limits, addrs func() ([]net.Addr, error)) (*Stack, error) {
	if err := opts.Policy.Validate(); err != nil {
		return nil, err
	}
	s := &Stack{
		limits: lim, isOwn: (&hostAddresses{ask: addrs}).has,
		gateway: netip.MustParseAddr(network.Gateway), dns: netip.MustParseAddr(network.DNS),
		observer: opts.Observer, interceptor: opts.Interceptor, dialer: opts.Dialer,
		resolver: opts.Resolver,
		names:    network.NewNames(lim.addresses, lim.remember), cache: newLookupCache(),
		zones: newZones(lim.zoneRate, lim.zoneBurst),
		tell:  rate.NewLimiter(lim.tellRate, lim.tellBurst), opens: rate.NewLimiter(lim.openRate,
			lim.openBurst),
		buffers: newPool(32 << 10), datagrams: newPool(maxDatagram),
		lookupRate: rate.NewLimiter(lim.lookupRate, lim.lookupBurst),
		pending:    map[stack.TransportEndpointID]*stack.PacketBuffer{},
	}
	s.judge.Store(network.NewJudge(opts.Policy, s.isOwn))
	s.connections.max, s.opening.max, s.flows.max = int64(lim.connections), int64(lim.opening),
		int64(lim.flows)
	s.asking.max, s.dnsConn.max = int64(lim.lookups), int64(lim.dnsConns)
	if s.dialer == nil {
		s.dialer = &net.Dialer{}
	}
	if s.resolver == nil {
		s.resolver = &net.Resolver{PreferGo: true}
	}
	s.proxy = proxy.New(proxy.Options{Dialer: s.dialer, Resolver: s.resolver, Budget: opts.Budget,
		Observer: counting{s}})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.build(cmp.Or(opts.MTU, network.MTU)); err != nil {
		s.cancel()
		s.net.Destroy()
		return nil, turnstone.NewError("network.new", turnstone.KindInternal, "", err)
	}
	return s, nil
}

// SetPolicy replaces the policy for connections that the guest opens from now on. An error is of
// kind Invalid and names the invalid rule.
func (s *Stack) SetPolicy(p network.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	s.judge.Store(network.NewJudge(p, s.isOwn))
	return nil
}

// build creates the TCP/IP stack: a single card that accepts packets to every address.
func (s *Stack) build(mtu int) error {
	s.net = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol,
			icmp.NewProtocol4},
	})
	guest := netip.MustParsePrefix(network.GuestAddress).Addr()
	s.link = &link{counters: &s.counters, mtu: mtu, guest: ipAddress(guest), refuse: s.refusePacket,
		services: []tcpip.Address{ipAddress(s.gateway), ipAddress(s.dns)}}
	var errs []error
	check := func(err tcpip.Error) {
		if err != nil {
			errs = append(errs, errors.New(err.String()))
		}
	}
	check(s.net.CreateNIC(nic, s.link))
	for _, a := range s.link.services {
		check(s.net.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: a, PrefixLen: 24}},
			stack.AddressProperties{}))
	}
	check(s.net.SetPromiscuousMode(nic, true)) // accepts packets to any address
	check(s.net.SetSpoofing(nic, true))        // and answers from it
	s.net.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	s.configureTCP(check)
	check(s.net.SetOption(tcpip.SendBufferSizeOption{Min: 4 << 10, Default: 64 << 10,
		Max: 64 << 10}))
	check(s.net.SetOption(tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: 64 << 10,
		Max: 64 << 10}))

	s.forward = tcp.NewForwarder(s.net, 0, 2*s.limits.opening, s.serveTCP)
	s.net.SetTransportProtocolHandler(tcp.ProtocolNumber, s.handleTCP)
	s.net.SetTransportProtocolHandler(udp.ProtocolNumber, s.handleUDP)
	s.net.SetTransportProtocolHandler(icmp.ProtocolNumber4, s.handleICMP)
	if err := s.listenDNS(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Stack) configureTCP(check func(tcpip.Error)) {
	set := func(o tcpip.SettableTransportProtocolOption) {
		check(s.net.SetTransportProtocolOption(tcp.ProtocolNumber, o))
	}
	n := s.limits.buffer
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	set(&sack)
	set(&moderate)
	set(&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: n, Max: n})
	set(&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: n, Max: n})
	// An ended connection is remembered only as long as a queue may contain one of its packets.
	wait, linger := tcpip.TCPTimeWaitTimeoutOption(time.Second),
		tcpip.TCPLingerTimeoutOption(s.limits.linger)
	set(&wait)
	set(&linger)
}

// Serve carries frames until either side ends, ctx ends or the Stack is closed, and closes frames,
// whose Close must end a pending Read. It returns nil if the guest's side ended between two frames
// or the Stack was closed, and an error of kind Canceled after ctx. Input that is not framed
// correctly ends it with an error of kind Invalid. It may be called again after it has returned,
// for a machine that resumes: connections are kept. While another call runs, Serve returns an error
// of kind Invalid.
func (s *Stack) Serve(ctx context.Context, frames io.ReadWriteCloser) error {
	done, err := s.begin()
	if err != nil {
		_ = frames.Close()
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = frames.Close()
		close(closed)
	})

	out := s.link.open()
	written := make(chan error, 1)
	go func() {
		err := s.link.write(frames, out)
		if err != nil {
			cancel()
		}
		written <- err
	}()
	readErr := s.link.read(frames)
	ended := ctx.Err() != nil
	cancel()
	s.link.shut()
	writeErr := <-written
	for p := range out {
		p.DecRef()
	}
	<-closed
	switch {
	case s.ctx.Err() != nil:
		return nil
	case writeErr != nil && (ended || readErr == nil):
		return turnstone.NewError("network.serve", turnstone.KindDead, "frames of a sandbox",
			writeErr)
	case ended:
		return turnstone.NewError("network.serve", turnstone.KindCanceled, "", context.Cause(ctx))
	}
	return readErr
}

func (s *Stack) begin() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, turnstone.NewError("network.serve", turnstone.KindInvalid, "", net.ErrClosed)
	case s.serving != nil:
		return nil, turnstone.Errorf("network.serve", turnstone.KindInvalid, "", "served already")
	}
	ch := make(chan struct{})
	s.serving = ch
	return func() {
		s.mu.Lock()
		s.serving = nil
		s.mu.Unlock()
		close(ch)
	}, nil
}

// Close ends every connection and frees the Stack's resources. It may be called more than once;
// when it returns, no goroutine of the Stack and no call of Serve is left.
func (s *Stack) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	serving := s.serving
	s.mu.Unlock()
	s.cancel()
	if serving != nil {
		<-serving
	}
	if first {
		s.net.Close()
	}
	s.wg.Wait()
	if first {
		s.net.Wait()
	}
	return nil
}

// DialGuest opens a connection to a TCP port of the guest. The guest sees Gateway as its source.
// The connection has CloseWrite. An error is of kind Unavailable if no process listens there, and
// of kind Dead if the Stack is closed.
func (s *Stack) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	fail := func(k turnstone.Kind, err error) error {
		return turnstone.NewError("network.dial", k,
			"port "+(netip.AddrPortFrom(addressOf(s.link.guest), port)).String(),
			err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for wait := 10 * time.Millisecond; s.link.mac.Load() == nil; wait = min(2*wait, time.Second) {
		s.link.askARP()
		select {
		case <-ctx.Done():
			return nil, fail(turnstone.KindCanceled, ctx.Err())
		case <-time.After(wait):
		}
	}
	conn, err := gonet.DialTCPWithBind(ctx, s.net, tcpip.FullAddress{NIC: nic,
		Addr: s.link.services[0]},
		tcpip.FullAddress{NIC: nic, Addr: s.link.guest, Port: port}, ipv4.ProtocolNumber)
	switch {
	case s.ctx.Err() != nil:
		if err == nil {
			_ = conn.Close()
		}
		return nil, fail(turnstone.KindDead, net.ErrClosed)
	case err != nil && ctx.Err() != nil:
		return nil, fail(turnstone.KindCanceled, ctx.Err())
	case err != nil:
		return nil, fail(turnstone.KindUnavailable, err)
	}
	return conn, nil
}

func ipAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFrom4(a.As4()) }

func addressOf(a tcpip.Address) netip.Addr {
	n, _ := netip.AddrFromSlice(a.AsSlice())
	return n.Unmap()
}
