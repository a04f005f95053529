package netstack

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network/networktest"
)

func TestBadFrames(t *testing.T) {
	for what, c := range map[string]struct {
		in   []byte
		kind turnstone.Kind
	}{
		"the end":             {nil, ""},
		"a huge length":       {[]byte{0xff, 0xff, 0xff, 0xff}, turnstone.KindInvalid},
		"HTTP":                {[]byte("GET / HTTP/1.1\r\n\r\n"), turnstone.KindInvalid},
		"half a length":       {[]byte{0, 0}, turnstone.KindDead},
		"half a frame":        {[]byte{0, 0, 0, 60, 1, 2, 3}, turnstone.KindDead},
		"half a jumbo frame":  {[]byte{0, 0, 0x40, 0, 1, 2, 3}, turnstone.KindDead},
		"a frame of no bytes": {[]byte{0, 0, 0, 0}, ""},
	} {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := net.Pipe()
		result := make(chan error, 1)
		go func() { result <- s.Serve(t.Context(), ours) }()
		go func() { _, _ = theirs.Write(c.in); _ = theirs.Close() }()
		err = <-result
		switch {
		case c.kind == "" && err != nil, c.kind != "" &&
			(err == nil || turnstone.KindOf(err) != c.kind):
			t.Errorf("%s: %v", what, err)
		}
		_ = s.Close()
	}
}

func FuzzFrames(f *testing.F) {
	frame := func(b []byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil,
			uint32(len(b))), b...)
	}
	f.Add(frame(syn(1, address(198, 51, 100, 1), 80)))
	f.Add(frame(datagram(1, address(10, 0, 2, 3), 53, question(f, "good.example", dnsmessage.TypeA,
		true))))
	f.Add(frame(datagram(1, address(198, 51, 100, 1), 9, []byte("x"))))
	f.Add(frame(packet{dst: address(198, 51, 100, 1), protocol: header.UDPProtocolNumber,
		more: true, payload: make([]byte, 80)}.frame()))
	f.Add(frame(packet{dst: address(8, 8, 8, 8), protocol: header.ICMPv4ProtocolNumber,
		payload: []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}}.frame()))
	host := networktest.NewHost(f)
	host.Name("good.example", "198.51.100.1")
	host.Listen("198.51.100.1:80", networktest.Echo)
	s, err := New(Options{Resolver: host, Dialer: host})
	if err != nil {
		f.Fatal(err)
	}
	defer s.Close()
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &script{in: bytes.NewReader(in)}
		err := s.Serve(t.Context(), c)
		if err != nil && turnstone.KindOf(err) != turnstone.KindInvalid &&
			turnstone.KindOf(err) != turnstone.KindDead {
			t.Fatal(err)
		}
		if !c.closed.Load() {
			t.Fatal("the frames were not closed")
		}
	})
}

// A script is a connection with prepared input.
type script struct {
	in     *bytes.Reader
	closed atomic.Bool
}

func (s *script) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error) { return len(b), nil }
func (s *script) Close() error                { s.closed.Store(true); return nil }

// TestCloseWhileOpening checks that Close never waits for a guest.
func TestCloseWhileOpening(t *testing.T) {
	for i := range 60 {
		host := networktest.NewHost(t)
		host.Listen("198.51.100.1:80", networktest.Echo)
		s, err := newStack(Options{Dialer: host, Resolver: host}, endless(), net.InterfaceAddrs)
		if err != nil {
			t.Fatal(err)
		}
		var in bytes.Buffer
		for port := range 20 {
			f := syn(uint16(1000+port), address(198, 51, 100, 1), 80)
			in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(f))), f...))
		}
		if err := s.Serve(t.Context(), &script{in: bytes.NewReader(in.Bytes())}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 20 * time.Microsecond)
		start := time.Now()
		_ = s.Close()
		if d := time.Since(start); d > 2*time.Minute { // a handshake may take ten
			t.Fatalf("Close took %s", d)
		}
	}
}

// TestFramesThatNobodyReads checks that a guest that does not read its frames loses them, and does
// not stop others.
func TestFramesThatNobodyReads(t *testing.T) {
	host := networktest.NewHost(t)
	s, err := newStack(Options{Dialer: host, Resolver: host}, endless(), net.InterfaceAddrs)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := networktest.SocketPair(t)
	defer theirs.Close()
	result := make(chan error, 1)
	go func() { result <- s.Serve(t.Context(), ours) }()
	g := &guest{tb: t, frames: theirs}
	for i := range 20000 {
		g.send(syn(uint16(1024+i), address(192, 168, 1, 1), 80))
	}
	eventually(t, func() bool { return s.Totals().Refused == 20000 })
	if s.Totals().Dropped == 0 {
		t.Error("every answer found room")
	}
	start := time.Now()
	_ = s.Close()
	if d := time.Since(start); d > 2*time.Minute {
		t.Errorf("Close took %s", d)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestTooManyASecond checks that connections that are opened too fast wait for the guest's retry.
func TestTooManyASecond(t *testing.T) {
	r := newRaw(t, Options{}, func(l *limits) { l.openRate, l.openBurst = 10, 20 })
	r.host.Listen("198.51.100.1:80", networktest.Echo)
	r.host.Listen("198.51.100.1:9", udpEcho)
	for i := range 100 {
		r.send(syn(uint16(1000+i), address(198, 51, 100, 1), 80))
	}
	eventually(t, func() bool { return r.stack.Totals().Refused > 30 && r.synAcks.Load() >= 20 })
	if r.resets.Load() != 0 || len(r.host.Dials()) > 70 {
		t.Errorf("%d resets, %d connections", r.resets.Load(), len(r.host.Dials()))
	}
	r.send(datagram(1, address(198, 51, 100, 1), 9, []byte("x")))
	if x := r.log.lastRefusal(
		t); x.Reason != "too many new connections a second: tried again later" {
		t.Errorf("%+v", x)
	}
	eventually(t, func() bool {
		r.send(syn(5000, address(198, 51, 100, 1),
			80))
		return r.synAcks.Load() > 20
	})
}

func TestLookupTablesAreBounded(t *testing.T) {
	c, z := newLookupCache(), newZones(1, 1)
	for i := range 5000 {
		name := "x" + strconv.Itoa(i) + ".example"
		c.put(name, nil, 0)
		if !z.allow("deep.below." + name) {
			t.Fatalf("%s: the first lookup below a domain", name)
		}
		if z.allow(name) {
			t.Fatalf("%s: the second one", name)
		}
	}
	if len(c.byName) > cacheSize || len(z.byName) > maxZones || z.order.Len() > maxZones {
		t.Fatal(len(c.byName), len(z.byName))
	}
}
