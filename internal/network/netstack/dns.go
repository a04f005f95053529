package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
	"turnstone.dev/turnstone"
)

const (
	dnsPort = 53
	// maxQuery bounds a query, in bytes: a name has at most 255, and the rest is small.
	maxQuery = 1232
	// plainAnswer is the maximum of a UDP answer to a client without EDNS (RFC 1035, 4.2.1), and
	// ednsAnswer the maximum that this server sends to a client with EDNS, so that no answer is
	// fragmented; both in bytes.
	plainAnswer, ednsAnswer = 512, 1232
	// answerTTL is how long a guest may use an answer, in seconds. The answer is remembered for
	// longer.
	answerTTL = 60
	// dnsIdle is how long a TCP connection to the name server may be silent.
	dnsIdle = 10 * time.Second
)

// listenDNS starts the name server on the stack.
func (s *Stack) listenDNS() error {
	addr := tcpip.FullAddress{NIC: nic, Addr: ipAddress(s.dns), Port: dnsPort}
	packets, err := gonet.DialUDP(s.net, &addr, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	queue := &waiter.Queue{}
	ep, terr := s.net.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, queue)
	if terr == nil {
		terr = ep.Bind(addr)
	}
	if terr == nil {
		terr = ep.Listen(s.limits.dnsConns)
	}
	if terr != nil {
		return errors.New(terr.String())
	}
	streams := gonet.NewTCPListener(s.net, queue, ep)
	context.AfterFunc(s.ctx, func() {
		_ = packets.Close()
		streams.Shutdown()
		_ = streams.Close()
	})
	s.wg.Go(func() { s.serveDNSPackets(packets) })
	s.wg.Go(func() { s.serveDNSStreams(streams) })
	return nil
}

func (s *Stack) serveDNSPackets(conn net.PacketConn) {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if n > maxQuery {
			s.counters.dropped.Add(1)
			continue
		}
		query := append([]byte(nil), buf[:n]...)
		if !s.asking.enter() {
			s.refuseLimit(&s.manyLookups, turnstone.Refusal{Protocol: "dns",
				Reason: "too many lookups at once"})
			continue
		}
		s.wg.Go(func() {
			defer s.asking.leave()
			if answer := s.answerDNS(s.ctx, query, false); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		})
	}
}

func (s *Stack) serveDNSStreams(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if !s.dnsConn.enter() {
			_ = conn.Close()
			continue
		}
		s.wg.Go(func() {
			defer s.dnsConn.leave()
			defer conn.Close()
			defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
			for s.serveDNSStream(conn) == nil {
			}
		})
	}
}

// serveDNSStream answers a query on a stream, on which each query follows its length (RFC 1035,
// 4.2.2).
func (s *Stack) serveDNSStream(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(dnsIdle))
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint16(length[:])
	if n > maxQuery {
		return errors.New("query too long")
	}
	query := make([]byte, n)
	if _, err := io.ReadFull(conn, query); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(s.limits.lookupTime + dnsIdle))
	answer := s.answerDNS(s.ctx, query, true)
	if answer == nil {
		return errors.New("not a query")
	}
	_, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	return err
}

// A query is the guest's question.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question
	edns     bool
	size     int // maximum of an answer over UDP, in bytes
}

// errDNS means that a query is answered with a code only.
type errDNS struct{ code dnsmessage.RCode }

func (e errDNS) Error() string { return e.code.String() }

// errNoQuery means that a message gets no answer.
var errNoQuery = errors.New("not a query")

// parseQuery parses a query: one question, no records except an OPT (RFC 1035, RFC 6891).
func parseQuery(msg []byte) (query, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return query{}, errNoQuery
	}
	q := query{header: h, size: plainAnswer}
	if h.OpCode != 0 {
		return q, errDNS{dnsmessage.RCodeNotImplemented}
	}
	if q.question, err = p.Question(); err != nil {
		return q, errDNS{dnsmessage.RCodeFormatError}
	}
	for _, last := range []func() error{p.SkipQuestion, p.SkipAnswer, p.SkipAuthority} {
		if err := last(); !errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, errDNS{dnsmessage.RCodeFormatError}
		}
	}
	for range 4 { // an OPT, and maybe a signature
		r, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, nil
		}
		if err == nil && r.Type == dnsmessage.TypeOPT {
			q.edns = true
			q.size = min(max(int(r.Class), plainAnswer), ednsAnswer)
		}
		if err == nil {
			err = p.SkipAdditional()
		}
		if err != nil {
			break
		}
	}
	return q, errDNS{dnsmessage.RCodeFormatError}
}

// A reply is the answer to a query.
type reply struct {
	code   dnsmessage.RCode
	addrs  [][4]byte
	ptr    string
	reason string // why it was refused, for human readers (RFC 8914)
}

// answerDNS returns the answer to a query, or nil for no answer.
func (s *Stack) answerDNS(ctx context.Context, msg []byte, stream bool) []byte {
	q, err := parseQuery(msg)
	var code errDNS
	var r reply
	switch {
	case errors.As(err, &code):
		r.code = code.code
	case err != nil:
		s.counters.dropped.Add(1)
		return nil
	default:
		r = s.resolve(ctx, q.question)
	}
	most := q.size
	if stream {
		most = maxDatagram
	}
	answer, err := r.pack(q, false)
	if err == nil && len(answer) > most {
		answer, err = r.pack(q, true)
	}
	if err != nil {
		return nil
	}
	return answer
}

// pack encodes the answer; a truncated answer has no records and makes the client ask again on a
// stream.
func (r reply) pack(q query, truncated bool) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.header.ID, Response: true,
		OpCode:           q.header.OpCode,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true, Truncated: truncated,
		RCode: r.code})
	b.EnableCompression()
	if q.question.Name.Length > 0 {
		if err := errors.Join(b.StartQuestions(), b.Question(q.question)); err != nil {
			return nil, err
		}
	}
	if !truncated {
		if err := r.packAnswers(&b, q.question.Name); err != nil {
			return nil, err
		}
	}
	if q.edns {
		if err := r.packOPT(&b); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}

func (r reply) packAnswers(b *dnsmessage.Builder, name dnsmessage.Name) error {
	if err := b.StartAnswers(); err != nil {
		return err
	}
	h := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: answerTTL}
	for _, a := range r.addrs {
		if err := b.AResource(h, dnsmessage.AResource{A: a}); err != nil {
			return err
		}
	}
	if r.ptr == "" {
		return nil
	}
	to, err := dnsmessage.NewName(r.ptr + ".")
	if err != nil {
		return err
	}
	return b.PTRResource(h, dnsmessage.PTRResource{PTR: to})
}

// packOPT adds the OPT record, with the reason for a refusal as an extended error.
func (r reply) packOPT(b *dnsmessage.Builder) error {
	const extendedError, blocked = 15, 15 // the option, and its code for policy blocks
	var h dnsmessage.ResourceHeader
	if err := h.SetEDNS0(ednsAnswer, 0, false); err != nil {
		return err
	}
	var opt dnsmessage.OPTResource
	if r.reason != "" {
		opt.Options = append(opt.Options, dnsmessage.Option{Code: extendedError,
			Data: append(binary.BigEndian.AppendUint16(nil, blocked), r.reason...)})
	}
	return errors.Join(b.StartAdditionals(), b.OPTResource(h, opt))
}
