package netstack

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network/networktest"
)

// wellFormed creates frames from a fuzzer's records: a byte for the protocol and the fragment, a
// byte for the destination, and a byte for the length of the following bytes, which become a packet
// with valid lengths and checksums, so that it passes the first checks.
func wellFormed(in []byte) []byte {
	var out []byte
	hosts := []tcpip.Address{address(198, 51, 100, 1), address(10, 0, 2, 2), address(10, 0, 2, 3),
		address(198, 51, 100, 2)}
	for len(in) > 3 {
		kind, dst, n := in[0], hosts[in[1]%4], int(in[2])
		in = in[3:]
		n = min(n, len(in))
		payload := append([]byte(nil), in[:n]...)
		in = in[n:]
		p := packet{dst: dst, payload: payload, id: uint16(kind >> 4)}
		if kind&4 != 0 {
			p.more, p.offset = kind&8 != 0, uint16(kind>>4)*8
		}
		switch kind & 3 {
		case 0, 1:
			p.protocol = header.TCPProtocolNumber
			p.payload = tcpChecksum(payload, dst)
		case 2:
			p.protocol = header.UDPProtocolNumber
			if len(payload) >= header.UDPMinimumSize {
				u := header.UDP(payload)
				u.SetLength(uint16(len(u)))
				u.SetChecksum(0)
				u.SetChecksum(^checksum.Checksum(u,
					header.PseudoHeaderChecksum(header.UDPProtocolNumber, guestIP, dst,
						uint16(len(u)))))
			}
		case 3:
			p.protocol = header.ICMPv4ProtocolNumber
			if len(payload) >= header.ICMPv4MinimumSize {
				m := header.ICMPv4(payload)
				m.SetChecksum(0)
				m.SetChecksum(^checksum.Checksum(m, 0))
			}
		}
		f := p.frame()
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(f))), f...)
	}
	return out
}

func tcpChecksum(payload []byte, dst tcpip.Address) []byte {
	if len(payload) < header.TCPMinimumSize {
		return payload
	}
	t := header.TCP(payload)
	if off := int(t.DataOffset()); off < header.TCPMinimumSize || off > len(t) {
		t.SetDataOffset(header.TCPMinimumSize)
	}
	t.SetChecksum(0)
	t.SetChecksum(^checksum.Checksum(t, header.PseudoHeaderChecksum(header.TCPProtocolNumber,
		guestIP, dst, uint16(len(t)))))
	return payload
}

// FuzzPackets sends the TCP/IP stack packets in which only the content is invalid.
func FuzzPackets(f *testing.F) {
	record := func(kind, dst byte,
		b []byte) []byte {
		return append([]byte{kind, dst, byte(len(b))}, b...)
	}
	s := syn(1000, address(198, 51, 100, 1), 80)[header.EthernetMinimumSize+header.IPv4MinimumSize:]
	options := header.TCP(append(append([]byte(nil), s...), 2, 4, 0, 1, 3, 3, 14, 4, 2, 8, 10, 0, 0,
		0, 1, 0, 0, 0, 0, 0))
	options.SetDataOffset(40)
	ack := header.TCP(append([]byte(nil), s...))
	ack.SetFlags(uint8(header.TCPFlagAck | header.TCPFlagFin | header.TCPFlagUrg))
	u := datagram(7, address(10, 0, 2, 3), 53, question(f, "good.example", 1,
		true))[header.EthernetMinimumSize+header.IPv4MinimumSize:]
	unreachable := append([]byte{3, 4, 0, 0, 0, 0, 0, 68}, packet{src: address(198, 51, 100, 1),
		dst: guestIP, protocol: header.TCPProtocolNumber, payload: s}.frame()[14:]...)
	f.Add(bytes.Join([][]byte{record(0, 0, s), record(0, 0, ack), record(0, 0, options)}, nil))
	f.Add(bytes.Join([][]byte{record(2, 2, u), record(2, 0, u), record(6, 0, u), record(14, 0, u),
		record(0x2e, 0, u)}, nil))
	f.Add(bytes.Join([][]byte{record(3, 0, unreachable),
		record(3, 1, []byte{8, 0, 0, 0, 0, 0, 0, 0}), record(0, 1, s),
		record(3, 3, []byte{5, 1, 0, 0, 10, 0, 2, 9})}, nil))
	host := networktest.NewHost(f)
	host.Name("good.example", "198.51.100.1")
	host.Listen("198.51.100.1:80", func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(time.Second)) //wait: it ends what a guest leaves open; no check needs it
		_, _ = io.CopyN(c, c, 1<<20)
		_ = c.Close()
	})
	host.Listen("198.51.100.1:53", func(c net.Conn) { _ = c.Close() })
	st, err := newStack(Options{Resolver: host, Dialer: host}, defaultLimits(), net.InterfaceAddrs)
	if err != nil {
		f.Fatal(err)
	}
	defer st.Close()
	f.Fuzz(func(t *testing.T, in []byte) {
		err := st.Serve(t.Context(), &script{in: bytes.NewReader(wellFormed(in))})
		if err != nil && turnstone.KindOf(err) != turnstone.KindDead {
			t.Fatal(err)
		}
	})
}
