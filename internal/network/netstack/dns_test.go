package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
)

func question(tb testing.TB, name string, t dnsmessage.Type, edns bool) []byte {
	tb.Helper()
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		tb.Fatal(err)
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	_ = b.StartQuestions()
	_ = b.Question(dnsmessage.Question{Name: n, Type: t, Class: dnsmessage.ClassINET})
	if edns {
		var h dnsmessage.ResourceHeader
		_ = h.SetEDNS0(4096, 0, false)
		_ = b.StartAdditionals()
		_ = b.OPTResource(h, dnsmessage.OPTResource{})
	}
	msg, err := b.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	return msg
}

func parse(tb testing.TB, b []byte) dnsmessage.Message {
	tb.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		tb.Fatal(err)
	}
	return m
}

// ask sends a question over UDP.
func (g *guest) ask(name string, t dnsmessage.Type) dnsmessage.Message {
	g.tb.Helper()
	c := g.dialUDP("10.0.2.3:53")
	defer c.Close()
	return parse(g.tb, exchange(g.tb, c, question(g.tb, name, t, true)))
}

func exchange(tb testing.TB, c *gonet.UDPConn, msg []byte) []byte {
	tb.Helper()
	if _, err := c.Write(msg); err != nil {
		tb.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		tb.Fatal(err)
	}
	return buf[:n]
}

func addresses(m dnsmessage.Message) (out []string) {
	for _, a := range m.Answers {
		if r, ok := a.Body.(*dnsmessage.AResource); ok {
			out = append(out, netip.AddrFrom4(r.A).String())
		}
	}
	return out
}

func TestNameServer(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Deny: networktest.Rules(t, "bad.example")}})
	w.host.Name("good.example", "198.51.100.1", "198.51.100.2", "2001:db8::1", "10.0.0.1")
	w.host.Name("bad.example", "198.51.100.3")
	w.host.Name("six.example", "2001:db8::1")
	w.host.Name("rebind.example", "192.168.1.1")
	w.host.Name("meta.example", "169.254.169.254", "127.0.0.1")
	w.host.Name("self.example", "198.51.100.77")
	w.host.Answer = func(_ context.Context, name string) ([]netip.Addr, error) {
		if name == "broken.example." {
			return nil, errors.New("server misbehaving")
		}
		return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
	}
	for _, c := range []struct {
		name string
		t    dnsmessage.Type
		code dnsmessage.RCode
		want string
	}{
		{"good.example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "[198.51.100.1 198.51.100.2]"},
		{"GOOD.Example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "[198.51.100.1 198.51.100.2]"},
		{"good.example", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, "[]"},
		{"good.example", typeHTTPS, dnsmessage.RCodeSuccess, "[]"},
		{"good.example", dnsmessage.TypeTXT, dnsmessage.RCodeNotImplemented, "[]"},
		{"good.example", typeNULL, dnsmessage.RCodeNotImplemented, "[]"},
		{"good.example", dnsmessage.TypeALL, dnsmessage.RCodeNotImplemented, "[]"},
		{"bad.example", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
		{"bad.example", dnsmessage.TypeAAAA, dnsmessage.RCodeRefused, "[]"},
		{"six.example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "[]"},
		{"rebind.example", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
		{"meta.example", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
		{"self.example", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
		{"none.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, "[]"},
		{"none.example", dnsmessage.TypeAAAA, dnsmessage.RCodeNameError, "[]"},
		{"broken.example", dnsmessage.TypeA, dnsmessage.RCodeServerFailure, "[]"},
		{"127.0.0.1", dnsmessage.TypeA, dnsmessage.RCodeNameError, "[]"},
		{"sp ace.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, "[]"},
		{strings.Repeat("a23456789.", 21) + "example", dnsmessage.TypeA, dnsmessage.RCodeNameError,
			"[]"},
		{network.HostName, dnsmessage.TypeA, dnsmessage.RCodeNameError, "[]"},
		{"9.9.9.9.in-addr.arpa", dnsmessage.TypePTR, dnsmessage.RCodeNameError, "[]"},
	} {
		m := w.ask(c.name, c.t)
		if m.RCode != c.code || fmt.Sprint(addresses(m)) != c.want || !m.Response || m.ID != 7 {
			t.Errorf("%s %s: %s %v, want %s %s", c.name, c.t, m.RCode, addresses(m), c.code, c.want)
		}
		if len(m.Questions) != 1 || m.Questions[0].Name.String() != c.name+"." {
			t.Errorf("%s: question %v", c.name, m.Questions)
		}
	}
	m := w.ask("1.100.51.198.in-addr.arpa", dnsmessage.TypePTR)
	if len(m.Answers) != 1 ||
		m.Answers[0].Body.(*dnsmessage.PTRResource).PTR.String() != "good.example." {
		t.Errorf("%+v", m.Answers)
	}
	for _, name := range w.host.Lookups {
		if name == "bad.example." {
			t.Error("a denied name was looked up")
		}
		if !strings.HasSuffix(name, ".") {
			t.Errorf("%s: looked up in the host's search domains", name)
		}
	}
}

// TestRefusalSaysWhy checks that a refusal has a reason for clients with EDNS.
func TestRefusalSaysWhy(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"good.example")}})
	m := w.ask("other.example", dnsmessage.TypeA)
	if m.RCode != dnsmessage.RCodeRefused || len(m.Additionals) != 1 {
		t.Fatalf("%+v", m)
	}
	opt := m.Additionals[0].Body.(*dnsmessage.OPTResource).Options
	if len(opt) != 1 || opt[0].Code != 15 || string(opt[0].Data) != "\x00\x0fnot in allow" {
		t.Fatalf("%+v", opt)
	}
	if r := w.log.lastRefusal(t); r.Protocol != "dns" || r.Host != "other.example" ||
		r.Reason != "not in allow" || r.At.IsZero() {
		t.Fatalf("%+v", r)
	}
	if len(w.host.Lookups) != 0 {
		t.Fatalf("looked up: %v", w.host.Lookups)
	}
}

func TestHostNameIsTheGateway(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"127.0.0.1:8080")}})
	w.host.Listen("127.0.0.1:8080", networktest.Echo)
	if a := addresses(w.ask(network.HostName, dnsmessage.TypeA)); fmt.Sprint(a) != "["+
		network.Gateway+"]" {
		t.Fatal(a)
	}
	c := w.mustDial(network.Gateway + ":8080")
	_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: " + network.HostName + ":8080\r\n\r\n"))
	if _, err := io.ReadFull(c, make([]byte, 14)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if _, err := w.dial(network.Gateway + ":8081"); err == nil {
		t.Fatal("another port of the loopback")
	}
}

func TestNameServerOverTCP(t *testing.T) {
	w := newWorld(t, Options{})
	var many []string
	for i := range 60 {
		many = append(many, fmt.Sprintf("198.51.100.%d", i+100))
	}
	w.host.Name("many.example", many...)
	c := w.mustDial("10.0.2.3:53")
	defer c.Close()
	for range 3 {
		q := question(t, "many.example", dnsmessage.TypeA, false)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))),
			q...)); err != nil {
			t.Fatal(err)
		}
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if m := parse(t, b); len(m.Answers) != network.MaxAnswers || m.Truncated {
			t.Fatalf("%d answers", len(m.Answers))
		}
	}
}

// TestTruncated checks a long name with many addresses, which does not fit into 512 bytes.
func TestTruncated(t *testing.T) {
	w := newWorld(t, Options{})
	name := strings.Repeat("a23456789.", 18) + "example"
	var many []string
	for i := range 60 {
		many = append(many, fmt.Sprintf("198.51.100.%d", i+100))
	}
	w.host.Name(name, many...)
	c := w.dialUDP("10.0.2.3:53")
	defer c.Close()
	b := exchange(t, c, question(t, name, dnsmessage.TypeA, false))
	if m := parse(t, b); !m.Truncated || len(m.Answers) != 0 || len(b) > 512 {
		t.Fatalf("%+v, %d bytes", m.Header, len(b))
	}
	if m := parse(t, exchange(t, c, question(t, name, dnsmessage.TypeA, true))); m.Truncated ||
		len(m.Answers) != network.MaxAnswers {
		t.Fatalf("%+v", m.Header)
	}
}

func TestMalformedQueries(t *testing.T) {
	w := newWorld(t, Options{})
	good := question(t, "good.example", dnsmessage.TypeA, false)
	edit := func(f func([]byte) []byte) []byte { return f(append([]byte(nil), good...)) }
	for what, c := range map[string]struct {
		msg  []byte
		code dnsmessage.RCode
	}{
		"an update": {edit(func(b []byte) []byte { b[2] |= 5 << 3; return b }),
			dnsmessage.RCodeNotImplemented},
		"no question": {edit(func(b []byte) []byte { b[5] = 0; return b[:12] }),
			dnsmessage.RCodeFormatError},
		"two questions": {edit(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }),
			dnsmessage.RCodeFormatError},
		"many questions": {edit(func(b []byte) []byte { b[4] = 0xff; return b }),
			dnsmessage.RCodeFormatError},
		"an answer": {edit(func(b []byte) []byte { b[7] = 1; return b }),
			dnsmessage.RCodeFormatError},
		"many records": {edit(func(b []byte) []byte { b[10] = 0xff; return b }),
			dnsmessage.RCodeFormatError},
		"a name in a loop": {edit(
			func(b []byte) []byte { return append(b[:12], 0xc0, 12, 0, 1, 0, 1) }),
			dnsmessage.RCodeFormatError},
		"cut off": {good[:len(good)-3], dnsmessage.RCodeFormatError},
		"class CHAOS": {edit(func(b []byte) []byte { b[len(b)-1] = 3; return b }),
			dnsmessage.RCodeNotImplemented},
	} {
		c2 := w.dialUDP("10.0.2.3:53")
		if m := parse(t, exchange(t, c2, c.msg)); m.RCode != c.code || m.ID != 7 {
			t.Errorf("%s: %s, want %s", what, m.RCode, c.code)
		}
		_ = c2.Close()
	}
	// Invalid queries get no answer, and do not stop others.
	c := w.dialUDP("10.0.2.3:53")
	defer c.Close()
	for _, b := range [][]byte{{}, {1}, good[:11],
		edit(func(b []byte) []byte { b[2] |= 0x80; return b }), make([]byte, 1400)} {
		_, _ = c.Write(b)
	}
	w.host.Name("good.example", "198.51.100.1")
	if a := addresses(parse(t, exchange(t, c, good))); len(a) != 1 {
		t.Fatal(a)
	}
}

// TestTunnel checks that a tunnel through lookups is throttled, and that the receipt has a line
// about it.
func TestTunnel(t *testing.T) {
	w := newWorld(t, Options{},
		func(l *limits) {
			l.zoneBurst, l.zoneRate, l.lookupBurst, l.lookupRate = 20, 0.01, 50,
				0.01
		})
	w.host.Answer = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("198.51.100.1")}, nil
	}
	ask := func(format string, n int) (ok int) {
		for i := range n {
			if w.ask(fmt.Sprintf(format, i), dnsmessage.TypeA).RCode == dnsmessage.RCodeSuccess {
				ok++
			}
		}
		return ok
	}
	if ok := ask("data%d.evil.example", 200); ok < 20 || ok > 25 {
		t.Errorf("%d lookups below one domain", ok)
	}
	if ok := ask("a.b%d.example", 200); ok < 20 || ok > 45 {
		t.Errorf("%d lookups", ok)
	}
	if n := len(w.host.Lookups); n > 70 || int64(n) != w.stack.Totals().Lookups {
		t.Errorf("%d lookups left", n)
	}
	// Cached answers cost nothing.
	for range 50 {
		if m := w.ask("data0.evil.example", dnsmessage.TypeA); m.RCode != dnsmessage.RCodeSuccess {
			t.Fatal(m.RCode)
		}
	}
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	if len(w.log.refused) > 4 {
		t.Errorf("%d refusals were told", len(w.log.refused))
	}
	if tot := w.stack.Totals(); tot.Refused < 300 ||
		tot.Refused != tot.Untold+int64(len(w.log.refused)) {
		t.Errorf("%+v", tot)
	}
}

// TestLookupFlood checks that a resolver that does not answer holds at most the allowed number of
// lookups.
func TestLookupFlood(t *testing.T) {
	var open, most atomic.Int64
	w := newWorld(t, Options{},
		func(l *limits) { l.lookups, l.lookupTime = 8, 300*time.Millisecond })
	w.host.Answer = func(ctx context.Context, _ string) ([]netip.Addr, error) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c := w.dialUDP("10.0.2.3:53")
	defer c.Close()
	for i := range 200 {
		_, _ = c.Write(question(t, fmt.Sprintf("n%d.example%d", i, i), dnsmessage.TypeA, false))
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if m := parse(t, buf[:n]); m.RCode != dnsmessage.RCodeServerFailure {
		t.Fatal(m.RCode)
	}
	if most.Load() > 8 {
		t.Fatalf("%d lookups at once", most.Load())
	}
	if r := w.log.lastRefusal(t); r.Reason != "too many lookups at once" {
		t.Fatalf("%+v", r)
	}
	w.host.Name("good.example", "198.51.100.1")
	eventually(t, func() bool { return w.stack.asking.used.Load() == 0 })
	if a := addresses(w.ask("good.example", dnsmessage.TypeA)); len(a) != 1 {
		t.Fatal("lookups did not go on")
	}
}

func FuzzNameServer(f *testing.F) {
	f.Add(question(f, "good.example", dnsmessage.TypeA, true))
	f.Add(question(f, "1.100.51.198.in-addr.arpa", dnsmessage.TypePTR, false))
	f.Add(question(f, "good.example", dnsmessage.TypeTXT, false))
	host := networktest.NewHost(f)
	host.Name("good.example", "198.51.100.1")
	s, err := New(Options{Resolver: host, Dialer: host})
	if err != nil {
		f.Fatal(err)
	}
	defer s.Close()
	f.Fuzz(func(t *testing.T, msg []byte) {
		for _, stream := range []bool{false, true} {
			answer := s.answerDNS(t.Context(), msg, stream)
			if answer == nil {
				continue
			}
			var m dnsmessage.Message
			if err := m.Unpack(answer); err != nil || !m.Response ||
				m.ID != binary.BigEndian.Uint16(msg) {
				t.Fatalf("%x: %v", answer, err)
			}
			if !stream && len(answer) > ednsAnswer {
				t.Fatalf("%d bytes", len(answer))
			}
		}
	})
}
