package netstack

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/testsize"
)

var guestIP = tcpip.AddrFrom4([4]byte{10, 0, 2, 15})

// A packet is an attacker's frame.
type packet struct {
	mac      tcpip.LinkAddress // "": the guest's
	to       tcpip.LinkAddress // "": the gateway's
	etherTyp tcpip.NetworkProtocolNumber
	src, dst tcpip.Address
	protocol tcpip.TransportProtocolNumber
	id       uint16
	offset   uint16
	more     bool
	payload  []byte
}

func (p packet) frame() []byte {
	b := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+len(p.payload))
	f := header.EthernetFields{SrcAddr: guestMAC, DstAddr: gatewayMAC,
		Type: header.IPv4ProtocolNumber}
	if p.mac != "" {
		f.SrcAddr = p.mac
	}
	if p.to != "" {
		f.DstAddr = p.to
	}
	if p.etherTyp != 0 {
		f.Type = p.etherTyp
	}
	header.Ethernet(b).Encode(&f)
	ip := header.IPv4(b[header.EthernetMinimumSize:])
	var flags uint8
	if p.more {
		flags = header.IPv4FlagMoreFragments
	}
	src := p.src
	if src.Len() == 0 {
		src = guestIP
	}
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(ip)), ID: p.id, Flags: flags,
		FragmentOffset: p.offset, TTL: 64,
		Protocol: uint8(p.protocol), SrcAddr: src, DstAddr: p.dst})
	ip.SetChecksum(^ip.CalculateChecksum())
	copy(ip[header.IPv4MinimumSize:], p.payload)
	return b
}

// syn returns the first frame of a connection.
func syn(from uint16, dst tcpip.Address, port uint16) []byte {
	t := header.TCP(make([]byte, header.TCPMinimumSize))
	t.Encode(&header.TCPFields{SrcPort: from, DstPort: port, SeqNum: 1,
		DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
	t.SetChecksum(^t.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber,
		guestIP, dst, uint16(len(t)))))
	return packet{dst: dst, protocol: header.TCPProtocolNumber, payload: t}.frame()
}

func datagram(from uint16, dst tcpip.Address, port uint16, payload []byte) []byte {
	u := header.UDP(append(make([]byte, header.UDPMinimumSize), payload...))
	u.Encode(&header.UDPFields{SrcPort: from, DstPort: port, Length: uint16(len(u))})
	u.SetChecksum(^checksum.Checksum(u, header.PseudoHeaderChecksum(header.UDPProtocolNumber,
		guestIP, dst, uint16(len(u)))))
	return packet{dst: dst, protocol: header.UDPProtocolNumber, payload: u}.frame()
}

func address(a, b, c, d byte) tcpip.Address { return tcpip.AddrFrom4([4]byte{a, b, c, d}) }

// A raw is a world whose guest is only a wire: it sends frames, and counts the received frames.
type raw struct {
	*world
	resets, synAcks, others atomic.Int64
	done                    chan struct{}
}

func newRaw(tb testing.TB, opts Options, change ...func(*limits)) *raw {
	r := &raw{world: &world{host: networktest.NewHost(tb), log: &journal{},
		serve: make(chan error, 1)}, done: make(chan struct{})}
	lim := defaultLimits()
	for _, c := range change {
		c(&lim)
	}
	opts.Dialer, opts.Resolver, opts.Observer = r.host, r.host, r.log
	s, err := newStack(opts, lim, func() ([]net.Addr, error) { return nil, nil })
	if err != nil {
		tb.Fatal(err)
	}
	r.stack = s
	ours, theirs := networktest.SocketPair(tb)
	r.guest = &guest{tb: tb, frames: theirs}
	go func() { r.serve <- s.Serve(tb.Context(), ours) }()
	go func() {
		defer close(r.done)
		for {
			f, err := readFrame(theirs)
			if err != nil {
				return
			}
			r.count(f)
		}
	}()
	tb.Cleanup(func() {
		_ = s.Close()
		_ = theirs.Close()
		<-r.done
	})
	return r
}

func (r *raw) count(f []byte) {
	ip := header.IPv4(f[header.EthernetMinimumSize:])
	if header.Ethernet(f).Type() != header.IPv4ProtocolNumber ||
		ip.TransportProtocol() != header.TCPProtocolNumber {
		r.others.Add(1)
		return
	}
	switch flags := header.TCP(ip.Payload()).Flags(); {
	case flags.Contains(header.TCPFlagRst):
		r.resets.Add(1)
	case flags.Contains(header.TCPFlagSyn | header.TCPFlagAck):
		r.synAcks.Add(1)
	default:
		r.others.Add(1)
	}
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what func() bool) {
	tb.Helper()
	for range 12_000 {
		if what() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	tb.Fatal("it did not become true in two minutes")
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestPortScan(t *testing.T) {
	r := newRaw(t, Options{}, func(l *limits) { l.tellRate, l.tellBurst = 100, 1000 })
	before, goroutines := heap(), runtime.NumGoroutine()
	start, ports := time.Now(), testsize.Of(6_000, 65_535)
	for _, dst := range []tcpip.Address{address(10, 0, 2, 2), address(192, 168, 1, 1)} {
		for port := 1; port <= ports; port++ {
			r.send(syn(40000, dst, uint16(port)))
			// A guest that reads as fast as it writes loses no answer.
			if port%1000 == 0 {
				want := r.stack.Totals().Refused
				eventually(t, func() bool {
					return r.stack.Totals().Refused >= want &&
						r.resets.Load() >= want
				})
			}
		}
	}
	eventually(t, func() bool {
		return r.resets.Load()+r.stack.Totals().Dropped >= int64(2*ports-10) &&
			r.stack.Totals().Refused >= int64(2*ports)
	})
	t.Logf("%d ports in %s", 2*ports, time.Since(start))
	if n := len(r.host.Dials()); n != 0 {
		t.Fatalf("%d connections were tried", n)
	}
	eventually(t, func() bool { return runtime.NumGoroutine()-goroutines <= 5 })
	r.log.mu.Lock()
	told := len(r.log.refused)
	r.log.mu.Unlock()
	if told < 1000 || told > 20000 {
		t.Errorf("%d refusals were told", told)
	}
	r.log.refused = nil
	if after := heap(); after > before+16<<20 {
		t.Errorf("the heap grew by %d MB", (after-before)>>20)
	}
}

// TestHalfOpen opens connections to a host that does not answer, and connections that the guest
// never completes.
func TestHalfOpen(t *testing.T) {
	t.Parallel() // it waits for limits of seconds
	r := newRaw(t, Options{}, func(l *limits) { l.opening, l.handshake = 50, 10*time.Second })
	r.host.Listen("198.51.100.1:80", networktest.Echo)
	for i := range 2000 {
		r.send(syn(uint16(10000+i), address(198, 51, 100, 1), 80))
	}
	eventually(t, func() bool { return r.synAcks.Load() >= 50 })
	if n := len(r.host.Dials()); n > 50 {
		t.Fatalf("%d connections of the host for 50 that may be opened", n)
	}
	if n := r.stack.opening.used.Load(); n > 50 {
		t.Fatal(n)
	}
	if r := r.log.lastRefusal(t); !strings.HasPrefix(r.Reason,
		"too many connections being opened") {
		t.Fatalf("%+v", r)
	}
	if r.resets.Load() != 0 {
		t.Fatal("the guest was reset, when its kernel would have tried again")
	}
	// Incomplete connections are given up, and their places are free for others.
	eventually(t, func() bool {
		return r.stack.opening.used.Load() == 0 &&
			r.stack.connections.used.Load() == 0
	})
	r.stack.limits.handshake = 10 * time.Minute // none is in progress
	dials := len(r.host.Dials())
	for i := range 50 {
		r.send(syn(uint16(20000+i), address(198, 51, 100, 1), 80))
	}
	eventually(t, func() bool { return len(r.host.Dials()) == dials+50 })
	start := time.Now()
	_ = r.stack.Close()
	if d := time.Since(start); d > 2*time.Minute { // less than the handshakes may take
		t.Errorf("Close took %s", d)
	}
}

// TestTooManyConnections opens 256 connections, and then tries thousands of times more.
func TestTooManyConnections(t *testing.T) {
	w := newWorld(t, Options{},
		func(l *limits) { l.openRate, l.openBurst, l.connections = 1e6, 1e6, 256 })
	w.host.Listen("198.51.100.1:80",
		func(c net.Conn) { _, _ = io.Copy(io.Discard, c); _ = c.Close() })
	var open []io.Closer
	for range 256 {
		open = append(open, w.mustDial("198.51.100.1:80"))
	}
	before, goroutines := heap(), runtime.NumGoroutine()
	tries := testsize.Of(5_000, 50_000)
	for i := range tries {
		w.send(syn(uint16(1024+i), address(203, 0, 113, byte(2+i%100)), 80))
		if i%500 == 0 {
			eventually(t, func() bool { return w.stack.Totals().Refused >= int64(i) })
		}
	}
	eventually(t, func() bool { return w.stack.Totals().Refused == int64(tries) })
	if n := len(w.host.Dials()); n != 256 {
		t.Fatalf("%d connections of the host", n)
	}
	w.log.mu.Lock()
	if n := len(w.log.refused); n != 1 {
		t.Errorf("%d refusals were told", n)
	}
	w.log.mu.Unlock()
	eventually(t, func() bool { return runtime.NumGoroutine()-goroutines <= 10 })
	if after := heap(); after > before+16<<20 {
		t.Errorf("the heap grew by %d MB", (after-before)>>20)
	}
	for _, c := range open {
		_ = c.Close()
	}
	// The places are free again.
	eventually(t, func() bool { return w.stack.connections.used.Load() == 0 })
	_ = w.mustDial("198.51.100.1:80").Close()
}

// TestUnacknowledgedEnd checks that a connection whose end the guest does not acknowledge holds its
// place until it is given up.
func TestUnacknowledgedEnd(t *testing.T) {
	t.Parallel() // it waits for limits of seconds
	w := newWorld(t, Options{}, func(l *limits) { l.linger = 4 * time.Second })
	muted, closed := make(chan struct{}), make(chan struct{})
	w.host.Listen("198.51.100.1:80", func(c net.Conn) {
		defer close(closed)
		_, _ = io.Copy(io.Discard, c) // until the guest's end has arrived
		<-muted
		_, _ = c.Write(make([]byte, 100<<10))
		_ = c.Close()
	})
	c := w.mustDial("198.51.100.1:80")
	_ = c.CloseWrite()
	eventually(t, func() bool { // the guest knows that its end has arrived
		for _, ep := range w.net.RegisteredEndpoints() {
			if tcp.EndpointState(ep.(interface{ State() uint32 }).State()) == tcp.StateFinWait2 {
				return true
			}
		}
		return false
	})
	w.mute.Store(true)
	close(muted)
	<-closed
	if w.stack.connections.used.Load() != 1 {
		t.Fatal("its place is free, and its buffers are not")
	}
	eventually(t, func() bool { return w.stack.connections.used.Load() == 0 })
}

func TestSpoofing(t *testing.T) {
	r := newRaw(t, Options{})
	r.host.Listen("198.51.100.1:80", networktest.Echo)
	dst := address(198, 51, 100, 1)
	r.send(syn(1, dst, 80)) // the guest's address is known from here on
	eventually(t, func() bool { return r.synAcks.Load() == 1 })
	good := syn(2, dst, 80)
	edit := func(f func(b []byte)) []byte { b := append([]byte(nil), good...); f(b); return b }
	arp := func(mac tcpip.LinkAddress, sender, ip, target tcpip.Address) []byte {
		b := make([]byte, header.EthernetMinimumSize+header.ARPSize)
		header.Ethernet(b).Encode(&header.EthernetFields{SrcAddr: mac,
			DstAddr: header.EthernetBroadcastAddress, Type: header.ARPProtocolNumber})
		a := header.ARP(b[header.EthernetMinimumSize:])
		a.SetIPv4OverEthernet()
		a.SetOp(header.ARPRequest)
		copy(a.HardwareAddressSender(), mac)
		copy(a.ProtocolAddressSender(), ip.AsSlice())
		copy(a.ProtocolAddressTarget(), target.AsSlice())
		return b
	}
	other := tcpip.LinkAddress("\x52\x54\x00\x00\x00\x01")
	bad := map[string][]byte{
		"another MAC": packet{mac: other, dst: dst, protocol: header.TCPProtocolNumber,
			payload: good[34:]}.frame(),
		"the gateway's MAC": packet{mac: gatewayMAC, dst: dst, protocol: header.TCPProtocolNumber,
			payload: good[34:]}.frame(),
		"a broadcast source": packet{mac: header.EthernetBroadcastAddress, dst: dst,
			protocol: header.TCPProtocolNumber, payload: good[34:]}.frame(),
		"to another MAC": packet{to: other, dst: dst, protocol: header.TCPProtocolNumber,
			payload: good[34:]}.frame(),
		"another IP": packet{src: address(10, 0, 2, 16), dst: dst,
			protocol: header.TCPProtocolNumber, payload: good[34:]}.frame(),
		"the gateway's IP": packet{src: address(10, 0, 2, 2), dst: dst,
			protocol: header.TCPProtocolNumber, payload: good[34:]}.frame(),
		"no IP": packet{src: address(0, 0, 0, 0), dst: address(255, 255, 255, 255),
			protocol: header.UDPProtocolNumber, payload: make([]byte, 300)}.frame(),
		"IPv6":               packet{etherTyp: header.IPv6ProtocolNumber, dst: dst}.frame(),
		"VLAN":               packet{etherTyp: 0x8100, dst: dst}.frame(),
		"an unknown type":    packet{etherTyp: 0x88b5, dst: dst}.frame(),
		"IP version 6":       edit(func(b []byte) { b[14] = 0x65 }),
		"a header too long":  edit(func(b []byte) { b[14] = 0x4f }),
		"a header too short": edit(func(b []byte) { b[14] = 0x44 }),
		"IP options":         edit(func(b []byte) { b[14] = 0x46 }),
		"a length too long":  edit(func(b []byte) { b[16] = 0xff }),
		"a length too short": edit(func(b []byte) { b[16], b[17] = 0, 19 }),
		"a runt":             good[:10],
		"nothing":            {},
		"half a header":      good[:20],
		"a jumbo frame":      append(append([]byte(nil), good...), make([]byte, 3000)...),
		"ARP of another IP":  arp(guestMAC, guestIP, address(10, 0, 2, 99), address(10, 0, 2, 2)),
		"ARP as the gateway": arp(guestMAC, guestIP, address(10, 0, 2, 2), address(10, 0, 2, 2)),
		"ARP of another MAC": arp(other, guestIP, guestIP, address(10, 0, 2, 2)),
		"ARP, cut off":       arp(guestMAC, guestIP, guestIP, address(10, 0, 2, 2))[:30],
	}
	for what, frame := range bad {
		before := r.stack.Totals().Dropped
		r.send(frame)
		eventually(t, func() bool { return r.stack.Totals().Dropped == before+1 })
		if r.others.Load()+r.resets.Load() != 0 || r.synAcks.Load() != 1 {
			t.Fatalf("%s was answered", what)
		}
	}
	// ARP answers only for the gateway and the name server.
	for _, last := range []byte{1, 2, 3, 4, 15, 255} {
		r.send(arp(guestMAC, guestIP, guestIP, address(10, 0, 2, last)))
	}
	r.send(good)
	eventually(t, func() bool { return r.synAcks.Load() == 2 })
	if n := r.others.Load(); n != 2 {
		t.Fatalf("%d answers", n)
	}
}

// TestOddPackets sends packets that belong to no connection: they are refused and reported, and
// have no other effect.
func TestOddPackets(t *testing.T) {
	r := newRaw(t, Options{})
	for what, c := range map[string]struct {
		frame  []byte
		reason string
	}{
		"multicast": {datagram(1, address(224, 0, 0, 251), 5353, []byte("x")),
			"udp 224.0.0.251:5353: multicast address"},
		"broadcast": {datagram(1, address(255, 255, 255, 255), 67, []byte("x")),
			"udp 255.255.255.255:67: broadcast address"},
		"subnet": {datagram(1, address(10, 0, 2, 255), 137, []byte("x")),
			"udp 10.0.2.255:137: private address"},
		"class E":  {syn(1, address(240, 0, 0, 1), 80), "tcp 240.0.0.1:80: reserved address"},
		"no host":  {syn(1, address(0, 0, 0, 0), 80), "tcp 0.0.0.0:80: address of no host"},
		"loopback": {syn(1, address(127, 0, 0, 1), 80), "tcp 127.0.0.1:80: loopback address"},
		"GRE": {packet{dst: address(198, 51, 100, 1), protocol: 47,
			payload: make([]byte, 40)}.frame(), "ip 198.51.100.1:0: protocol 47"},
		"SCTP": {packet{dst: address(198, 51, 100, 1), protocol: 132,
			payload: make([]byte, 40)}.frame(), "ip 198.51.100.1:0: protocol 132"},
		"another DNS": {datagram(1, address(192, 168, 1, 1), 53, []byte("x")),
			"udp 192.168.1.1:53: private address"},
	} {
		r.log.mu.Lock()
		r.log.refused = nil
		r.log.mu.Unlock()
		r.send(c.frame)
		got := r.log.lastRefusal(t)
		if s := fmt.Sprintf("%s %s: %s", got.Protocol, got.Address, got.Reason); s != c.reason {
			t.Errorf("%s: %s, want %s", what, s, c.reason)
		}
	}
	if n := len(r.host.Dials()); n != 0 {
		t.Fatalf("%d connections were tried", n)
	}
}

// TestFragments checks that fragments that never become complete packets use a bounded amount of
// memory.
func TestFragments(t *testing.T) {
	w := newWorld(t, Options{})
	w.host.Name("good.example", "198.51.100.1")
	w.ask("good.example", dnsmessage.TypeA)
	before := heap()
	payload := bytes.Repeat([]byte("x"), 1400)
	for i := range testsize.Of(24_000, 60_000) {
		w.send(packet{dst: address(198, 51, 100, 1), protocol: header.UDPProtocolNumber,
			id: uint16(i), offset: uint16(i%4) * 1400, more: true, payload: payload}.frame())
	}
	w.ask("good.example", dnsmessage.TypeA)
	if after := heap(); after > before+24<<20 {
		t.Fatalf("the heap grew by %d MB", (after-before)>>20)
	}
	// Complete packets arrive.
	w.host.Listen("198.51.100.1:9", udpEcho)
	c := w.dialUDP("198.51.100.1:9")
	defer c.Close()
	big := bytes.Repeat([]byte("0123456789"), 2000)
	if _, err := c.Write(big); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 65535)
	if n, err := c.Read(got); err != nil || !bytes.Equal(got[:n], big) {
		t.Fatalf("%d bytes, %v", n, err)
	}
}

// udpEcho serves the fake host's datagrams, one packet each.
func udpEcho(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 65535)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		_, _ = c.Write(buf[:n])
	}
}
