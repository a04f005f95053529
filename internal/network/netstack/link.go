package netstack

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

const (
	// gatewayMAC is the Ethernet address of everything outside. It is the same for every sandbox,
	// because a restored guest may remember it.
	gatewayMAC = tcpip.LinkAddress("\x52\x55\x0a\x00\x02\x02")

	// maxFrame bounds the declared length of a frame, in bytes: QEMU's maximum, and much more than
	// a card with this MTU sends. A longer frame is invalid.
	maxFrame = 4096 + 65536

	// queueBytes bounds the full frames that wait for the guest; further frames are lost, as on any
	// link, and TCP sends them again.
	queueBytes = 2048 * network.MTU
)

// A link is the Ethernet between the guest and the stack, and the stack's only network card. It
// learns the guest's Ethernet address from its first valid frame and sends everything there, so
// that no address is resolved, and ARP can poison nothing.
type link struct {
	counters *counters
	mtu      int
	guest    tcpip.Address
	services []tcpip.Address // addresses that ARP answers
	// refuse reports a packet to a forbidden address, and returns whether the address is forbidden.
	refuse func(ip header.IPv4) bool

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
	out        chan *stack.PacketBuffer // nil outside Serve

	mac atomic.Pointer[tcpip.LinkAddress] // the guest's; nil until it has sent a frame
	// the current frames have not told an address yet, and the next address may differ; belongs to
	// read
	fresh bool
}

var _ stack.LinkEndpoint = (*link)(nil)
var _ stack.GSOEndpoint = (*link)(nil)

// open creates the queue to the guest.
func (l *link) open() <-chan *stack.PacketBuffer {
	out := make(chan *stack.PacketBuffer, max(queueBytes/l.mtu, 256))
	l.mu.Lock()
	l.out = out
	l.mu.Unlock()
	l.fresh = true
	return out
}

// shut ends the queue; frames that the stack sends afterwards are lost.
func (l *link) shut() {
	l.mu.Lock()
	close(l.out)
	l.out = nil
	l.mu.Unlock()
}

// read reads frames from r until it ends. Its error is nil if r ends between two frames, and of
// kind Invalid if the input is not framed correctly.
func (l *link) read(r io.Reader) error {
	br := bufio.NewReaderSize(r, 64<<10)
	frame := make([]byte, header.EthernetMinimumSize+l.mtu)
	for {
		var length [4]byte
		if _, err := io.ReadFull(br, length[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return turnstone.NewError("network.serve", turnstone.KindDead, "frames of a sandbox",
				err)
		}
		n := binary.BigEndian.Uint32(length[:])
		if n > maxFrame {
			return turnstone.Errorf("network.serve", turnstone.KindInvalid, "frames of a sandbox",
				"a frame of %d bytes, when at most %d are possible", n, maxFrame).
				WithHint("send Ethernet frames, each after its length in four bytes")
		}
		var err error
		if int(n) > len(frame) || n < header.EthernetMinimumSize {
			l.counters.dropped.Add(1)
			_, err = br.Discard(int(n))
		} else if _, err = io.ReadFull(br, frame[:n]); err == nil && !l.take(frame[:n]) {
			l.counters.dropped.Add(1)
		}
		if err != nil {
			return turnstone.Errorf("network.serve", turnstone.KindDead, "frames of a sandbox",
				"in the middle of a frame: %w", err)
		}
	}
}

// take forwards a frame, and returns false for a frame that no honest guest sends.
func (l *link) take(frame []byte) bool {
	eth := header.Ethernet(frame)
	from, to := eth.SourceAddress(), eth.DestinationAddress()
	if header.IsMulticastEthernetAddress(from) || to != gatewayMAC &&
		!header.IsMulticastEthernetAddress(to) {
		return false
	}
	if mac := l.mac.Load(); mac != nil && *mac != from && !l.fresh {
		return false
	}
	payload := frame[header.EthernetMinimumSize:]
	switch eth.Type() {
	case header.ARPProtocolNumber:
		return l.arp(from, payload)
	case header.IPv4ProtocolNumber:
		return l.ip(from, payload)
	}
	return false
}

// learn learns the guest's Ethernet address from its first valid frame. Until then, a resumed
// machine receives frames at its last address.
func (l *link) learn(from tcpip.LinkAddress) {
	if l.fresh {
		l.fresh = false
		l.mac.Store(&from)
	}
}

// arp answers requests for the stack's addresses (RFC 826).
func (l *link) arp(from tcpip.LinkAddress, payload []byte) bool {
	ask := header.ARP(payload)
	if !ask.IsValid() || tcpip.LinkAddress(ask.HardwareAddressSender()) != from ||
		tcpip.AddrFromSlice(ask.ProtocolAddressSender()) != l.guest {
		return false
	}
	l.learn(from)
	if ask.Op() != header.ARPRequest ||
		!slices.Contains(l.services, tcpip.AddrFromSlice(ask.ProtocolAddressTarget())) {
		return true
	}
	l.sendARP(header.ARPReply, tcpip.AddrFromSlice(ask.ProtocolAddressTarget()), from)
	return true
}

// askARP asks the guest for its Ethernet address.
func (l *link) askARP() {
	l.sendARP(header.ARPRequest, l.services[0], header.EthernetBroadcastAddress)
}

func (l *link) sendARP(op header.ARPOp, ours tcpip.Address, to tcpip.LinkAddress) {
	frame := make([]byte, header.EthernetMinimumSize+header.ARPSize)
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: gatewayMAC, DstAddr: to,
		Type: header.ARPProtocolNumber})
	a := header.ARP(frame[header.EthernetMinimumSize:])
	a.SetIPv4OverEthernet()
	a.SetOp(op)
	copy(a.HardwareAddressSender(), gatewayMAC)
	copy(a.ProtocolAddressSender(), ours.AsSlice())
	if op == header.ARPReply {
		copy(a.HardwareAddressTarget(), to)
	}
	copy(a.ProtocolAddressTarget(), l.guest.AsSlice())
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer p.DecRef()
	l.mu.RLock()
	defer l.mu.RUnlock()
	l.enqueue(p)
}

// ip passes a packet of the guest to the stack. It drops headers with options (source routes) and
// foreign source addresses, which the guest does not need.
func (l *link) ip(from tcpip.LinkAddress, payload []byte) bool {
	ip := header.IPv4(payload)
	if !ip.IsValid(len(payload)) || ip.HeaderLength() != header.IPv4MinimumSize ||
		ip.SourceAddress() != l.guest {
		return false
	}
	l.learn(from)
	switch ip.TransportProtocol() {
	case header.TCPProtocolNumber, header.UDPProtocolNumber, header.ICMPv4ProtocolNumber:
	default:
		l.refuse(ip)
		return true
	}
	if l.refuse(ip) {
		return true
	}
	l.mu.RLock()
	d := l.dispatcher
	l.mu.RUnlock()
	if d == nil {
		return true
	}
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{
		Payload: buffer.MakeWithData(payload[:ip.TotalLength()])})
	defer p.DecRef()
	d.DeliverNetworkPacket(header.IPv4ProtocolNumber, p)
	return true
}

// write sends the frames of out to w until out is closed. After an error it continues without
// sending.
func (l *link) write(w io.Writer, out <-chan *stack.PacketBuffer) (err error) {
	bw := bufio.NewWriterSize(w, 64<<10)
	for p := range out {
		if err == nil {
			err = writeFrame(bw, p)
		}
		p.DecRef()
		if err == nil && len(out) == 0 {
			err = bw.Flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func writeFrame(w io.Writer, p *stack.PacketBuffer) error {
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(p.Size()))
	if _, err := w.Write(length[:]); err != nil {
		return err
	}
	for _, part := range p.AsSlices() {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// enqueue is called with mu held.
func (l *link) enqueue(p *stack.PacketBuffer) bool {
	if l.out == nil {
		return false
	}
	c := p.Clone()
	select {
	case l.out <- c:
		return true
	default:
		c.DecRef()
		l.counters.dropped.Add(1)
		return false
	}
}

// WritePackets implements stack.LinkWriter. It does not block, because a guest that does not read
// must not stop the stack.
func (l *link) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n := 0
	for _, p := range list.AsSlice() {
		if !l.enqueue(p) {
			return n, &tcpip.ErrNoBufferSpace{}
		}
		n++
	}
	return n, nil
}

// AddHeader implements stack.NetworkLinkEndpoint.
func (l *link) AddHeader(p *stack.PacketBuffer) {
	to := header.EthernetBroadcastAddress
	if mac := l.mac.Load(); mac != nil {
		to = *mac
	}
	header.Ethernet(p.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: gatewayMAC, DstAddr: to, Type: p.NetworkProtocolNumber})
}

// Attach implements stack.NetworkLinkEndpoint.
func (l *link) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	l.dispatcher = d
	l.mu.Unlock()
}

// IsAttached implements stack.NetworkLinkEndpoint.
func (l *link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// SupportedGSO implements stack.GSOEndpoint: TCP passes many segments at once, already cut to the
// MTU.
func (l *link) SupportedGSO() stack.SupportedGSO { return stack.GVisorGSOSupported }

// GSOMaxSize implements stack.GSOEndpoint.
func (l *link) GSOMaxSize() uint32 { return 32 << 10 }

// MTU implements stack.NetworkLinkEndpoint.
func (l *link) MTU() uint32 { return uint32(l.mtu) }

// SetMTU implements stack.NetworkLinkEndpoint; the MTU does not change.
func (l *link) SetMTU(uint32) {}

// MaxHeaderLength implements stack.NetworkLinkEndpoint.
func (l *link) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// LinkAddress implements stack.NetworkLinkEndpoint.
func (l *link) LinkAddress() tcpip.LinkAddress { return gatewayMAC }

// SetLinkAddress implements stack.NetworkLinkEndpoint; the address does not change.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.NetworkLinkEndpoint. No address is resolved, because there is a
// single guest.
func (l *link) Capabilities() stack.LinkEndpointCapabilities { return 0 }

// Wait implements stack.NetworkLinkEndpoint.
func (l *link) Wait() {}

// Close implements stack.NetworkLinkEndpoint.
func (l *link) Close() {}

// SetOnCloseAction implements stack.NetworkLinkEndpoint.
func (l *link) SetOnCloseAction(func()) {}

// ARPHardwareType implements stack.NetworkLinkEndpoint.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// ParseHeader implements stack.NetworkLinkEndpoint.
func (l *link) ParseHeader(*stack.PacketBuffer) bool { return false }
