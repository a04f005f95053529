package netstack

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
)

const guestMAC = tcpip.LinkAddress("\x52\x54\x00\x12\x34\x56")

// A guest is the other end of the frames: a stack like a machine's, with ARP.
type guest struct {
	tb     testing.TB
	net    *stack.Stack
	link   *channel.Endpoint
	frames net.Conn
	mute   atomic.Bool // the guest's frames are lost
}

// A world is a Stack with a guest, and the host's view and targets.
type world struct {
	*guest
	stack *Stack
	host  *networktest.Host
	log   *journal
	serve chan error
}

func newWorld(tb testing.TB, opts Options, change ...func(*limits)) *world {
	tb.Helper()
	w := &world{host: networktest.NewHost(tb), log: &journal{}, serve: make(chan error, 1)}
	lim := endless() // a busy machine reaches no limit of time that a test does not set
	for _, c := range change {
		c(&lim)
	}
	if opts.Dialer == nil {
		opts.Dialer = w.host
	}
	if opts.Resolver == nil {
		opts.Resolver = w.host
	}
	if opts.Observer == nil {
		opts.Observer = w.log
	}
	s, err := newStack(opts, lim, func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.IPv4(198, 51, 100, 77), Mask: net.CIDRMask(24, 32)}},
			nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	w.stack = s
	ours, theirs := networktest.SocketPair(tb)
	w.guest = newGuest(tb, theirs)
	go func() { w.serve <- s.Serve(context.Background(), ours) }()
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
		w.guest.close()
	})
	return w
}

func newGuest(tb testing.TB, frames net.Conn) *guest {
	tb.Helper()
	g := &guest{tb: tb, frames: frames,
		link: channel.New(4096, header.EthernetMinimumSize+network.MTU, guestMAC)}
	g.net = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol,
			icmp.NewProtocol4},
	})
	must := func(err tcpip.Error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	must(g.net.CreateNIC(1, ethernet.New(g.link)))
	must(g.net.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4([4]byte{10, 0, 2, 15}),
			PrefixLen: 24}}, stack.AddressProperties{}))
	local := tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4([4]byte{10, 0, 2, 0}),
		PrefixLen: 24}.Subnet()
	g.net.SetRouteTable([]tcpip.Route{{Destination: local, NIC: 1},
		{Destination: header.IPv4EmptySubnet, Gateway: tcpip.AddrFrom4([4]byte{10, 0, 2, 2}),
			NIC: 1}})
	g.attach(frames)
	return g
}

// attach carries the guest's frames over a connection until it ends.
func (g *guest) attach(frames net.Conn) {
	g.frames = frames
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		bw := bufio.NewWriterSize(frames, 64<<10)
		for {
			p := g.link.ReadContext(ctx)
			if p == nil {
				return
			}
			if !g.mute.Load() {
				_ = writeFrame(bw, p)
			}
			p.DecRef()
			if g.link.NumQueued() == 0 {
				_ = bw.Flush()
			}
		}
	}()
	go func() {
		defer cancel()
		br := bufio.NewReaderSize(frames, 64<<10)
		for {
			frame, err := readFrame(br)
			if err != nil {
				return
			}
			p := stack.NewPacketBuffer(
				stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
			g.link.InjectInbound(0, p)
			p.DecRef()
		}
	}()
}

func readFrame(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(r, frame)
	return frame, err
}

func (g *guest) close() {
	_ = g.frames.Close()
	g.net.Destroy()
	g.link.Close()
}

// send sends a raw frame.
func (g *guest) send(frame []byte) {
	g.tb.Helper()
	if _, err := g.frames.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))),
		frame...)); err != nil {
		g.tb.Fatal(err)
	}
}

func fullAddress(tb testing.TB, to string) tcpip.FullAddress {
	tb.Helper()
	a, err := netip.ParseAddrPort(to)
	if err != nil {
		tb.Fatal(err)
	}
	return tcpip.FullAddress{NIC: 1, Addr: ipAddress(a.Addr()), Port: a.Port()}
}

func (g *guest) dial(to string) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return gonet.DialContextTCP(ctx, g.net, fullAddress(g.tb, to), ipv4.ProtocolNumber)
}

func (g *guest) mustDial(to string) *gonet.TCPConn {
	g.tb.Helper()
	c, err := g.dial(to)
	if err != nil {
		g.tb.Fatalf("%s: %v", to, err)
	}
	// a bound for hanging operations, also on a busy machine
	_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
	return c
}

func (g *guest) dialUDP(to string) *gonet.UDPConn {
	g.tb.Helper()
	addr := fullAddress(g.tb, to)
	c, err := gonet.DialUDP(g.net, nil, &addr, ipv4.ProtocolNumber)
	if err != nil {
		g.tb.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
	return c
}

// A journal is an Observer that keeps everything.
type journal struct {
	mu      sync.Mutex
	refused []turnstone.Refusal
	closed  []network.Connection
}

func (j *journal) Refused(r turnstone.Refusal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.refused = append(j.refused, r)
}

func (j *journal) Closed(c network.Connection) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = append(j.closed, c)
}

// lastRefusal waits for a refusal.
func (j *journal) lastRefusal(tb testing.TB) turnstone.Refusal {
	tb.Helper()
	for range 12_000 {
		j.mu.Lock()
		n := len(j.refused)
		if n > 0 {
			defer j.mu.Unlock()
			return j.refused[n-1]
		}
		j.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	tb.Fatal("nothing was refused")
	return turnstone.Refusal{}
}

// connections waits until n connections have ended.
func (j *journal) connections(tb testing.TB, n int) []network.Connection {
	tb.Helper()
	for range 12_000 {
		j.mu.Lock()
		if len(j.closed) >= n {
			defer j.mu.Unlock()
			return append([]network.Connection(nil), j.closed...)
		}
		j.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	tb.Fatalf("not %d connections ended", n)
	return nil
}

var errAny = errors.New("any")

// serveGuest makes handler serve a port of the guest.
func serveGuest(tb testing.TB, g *guest, port uint16, handler func(net.Conn)) {
	tb.Helper()
	l, err := gonet.ListenTCP(g.net, tcpip.FullAddress{NIC: 1, Port: port}, ipv4.ProtocolNumber)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Shutdown(); _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go handler(c)
		}
	}()
}
