package netstack

import (
	"net/netip"
	"strconv"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"turnstone.dev/turnstone"
)

// refusePacket refuses packets with an unreachable address or an unsupported protocol, and reports
// whether it did.
func (s *Stack) refusePacket(ip header.IPv4) bool {
	to := addressOf(ip.DestinationAddress())
	r := turnstone.Refusal{Protocol: "ip", Address: netip.AddrPortFrom(to, 0)}
	var port uint16
	switch p := ip.TransportProtocol(); p {
	case header.TCPProtocolNumber:
		r.Protocol = "tcp"
	case header.UDPProtocolNumber:
		r.Protocol = "udp"
	case header.ICMPv4ProtocolNumber:
		r.Protocol = "icmp"
	default:
		r.Reason = "protocol " + strconv.Itoa(int(p))
	}
	// TCP and UDP have the destination's port in bytes 2 and 3.
	if b := ip[header.IPv4MinimumSize:ip.TotalLength()]; len(b) >= 4 && r.Protocol != "icmp" &&
		r.Reason == "" && ip.FragmentOffset() == 0 {
		port = uint16(b[2])<<8 | uint16(b[3])
	}
	r.Address = netip.AddrPortFrom(to, port)
	if word := s.judge.Load().Unreachable(to); word != "" {
		r.Reason = word
	}
	if r.Reason == "" {
		return false
	}
	s.refuse(r)
	return true
}

// handleICMP lets the stack answer pings of its own addresses. Hosts do not let an ordinary user
// ping other addresses.
func (s *Stack) handleICMP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	to := addressOf(id.LocalAddress)
	if to == s.gateway || to == s.dns {
		return false
	}
	s.refuse(turnstone.Refusal{Protocol: "icmp", Host: s.names.Latest(to),
		Address: netip.AddrPortFrom(to, 0), Reason: "only TCP and UDP go out"})
	s.reject(pkt, stack.RejectIPv4WithICMPAdminProhibited)
	return true
}

// reject answers pkt with an ICMP error; the stack bounds their rate.
func (s *Stack) reject(pkt *stack.PacketBuffer, with stack.RejectIPv4WithICMPType) {
	ip := s.net.NetworkProtocolInstance(ipv4.ProtocolNumber)
	if h, ok := ip.(stack.RejectIPv4WithHandler); ok {
		_ = h.SendRejectionError(pkt, with, false)
	}
}
