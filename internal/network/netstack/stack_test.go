package netstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
)

// endless returns limits of time that no test reaches, so that a Close that waits for one of them is
// told from a busy machine.
func endless() limits {
	l := defaultLimits()
	for _, d := range []*time.Duration{&l.dial, &l.handshake, &l.hello, &l.flowIdle,
		&l.linger, &l.lookupTime} {
		*d = 10 * time.Minute
	}
	return l
}

// TestCloseLeavesNothing checks that Close leaves nothing behind, whatever is in progress.
func TestCloseLeavesNothing(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Run("busy", func(t *testing.T) {
		w := newWorld(t, Options{}, func(l *limits) { *l = endless() })
		w.host.Listen("198.51.100.1:80", func(c net.Conn) {
			defer c.Close()
			for {
				if _, err := c.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		})
		w.host.Listen("198.51.100.1:7", networktest.Echo)
		w.host.Listen("198.51.100.1:9", udpEcho)
		w.host.Fails["198.51.100.9:80"] = context.DeadlineExceeded
		w.host.Fails["198.51.100.9:9"] = context.DeadlineExceeded
		for range 5 {
			c := w.mustDial("198.51.100.1:80")
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
			e := w.mustDial("198.51.100.1:7")
			go func() { _, _ = io.Copy(io.Discard, e); _ = e.Close() }()
			u := w.dialUDP("198.51.100.1:9")
			_, _ = u.Write([]byte("x"))
			defer u.Close()
			u = w.dialUDP("198.51.100.9:9")
			_, _ = u.Write([]byte("x"))
			defer u.Close()
		}
		w.send(syn(1, address(198, 51, 100, 9), 80))
		w.send(syn(2, address(198, 51, 100, 1), 7))
		d := w.mustDial("10.0.2.3:53")
		defer d.Close()
		go func() { _, _ = w.stack.DialGuest(context.Background(), 1) }()
		time.Sleep(100 * time.Millisecond) //wait: any moment is right
		start := time.Now()
		if err := errors.Join(w.stack.Close(), w.stack.Close()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 2*time.Minute { // what is in progress may take ten
			t.Errorf("Close took %s", d)
		}
		if err := <-w.serve; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if _, err := w.stack.DialGuest(t.Context(),
			1); turnstone.KindOf(err) != turnstone.KindDead {
			t.Errorf("DialGuest: %v", err)
		}
		_, theirs := networktest.SocketPair(t)
		if err := w.stack.Serve(t.Context(),
			theirs); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("Serve: %v", err)
		}
	})
	if err := leaktest.Find(ignore); err != nil {
		t.Error(err)
	}
}

func TestNewValidates(t *testing.T) {
	for _, bad := range []string{"127.0.0.1", "127.0.0.2:80", "127.0.0.0/8", "::1", "[::1]:80",
		"224.0.0.1", "255.255.255.255", "240.0.0.0/4", "0.0.0.0/8", "10.0.2.0/24", "10.0.2.2:80",
		"2001:db8::/32", "::/0", network.HostName, network.HostName + ":80"} {
		if _, err := New(Options{Policy: network.Policy{Allow: networktest.Rules(t,
			bad)}}); err == nil {
			t.Errorf("%s: a stack with it", bad)
		}
	}
}

func TestNeverServed(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	for range 3 {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) //wait: it is meant to expire
		if _, err := s.DialGuest(ctx, 80); turnstone.KindOf(err) != turnstone.KindCanceled {
			t.Fatal(err)
		}
		cancel()
		_ = s.Close()
	}
	if err := leaktest.Find(ignore); err != nil {
		t.Error(err)
	}
}

func TestServeEnds(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ours, theirs := networktest.SocketPair(t)
	result := make(chan error, 1)
	go func() { result <- s.Serve(ctx, ours) }()
	eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.serving != nil })
	second, _ := networktest.SocketPair(t)
	if err := s.Serve(ctx, second); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a second Serve: %v", err)
	}
	cancel()
	if err := <-result; turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("after cancel: %v", err)
	}
	if _, err := theirs.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the frames are still open: %v", err)
	}
	// The guest's side ends while the stack writes.
	ours, theirs = networktest.SocketPair(t)
	go func() { result <- s.Serve(t.Context(), ours) }()
	_ = theirs.Close()
	if err := <-result; err != nil {
		t.Errorf("after the guest's end: %v", err)
	}
}

// TestServeAgain checks that a machine that is paused and resumed has new frames, and keeps its
// connections.
func TestServeAgain(t *testing.T) {
	w := newWorld(t, Options{})
	w.host.Listen("198.51.100.1:7", networktest.Echo)
	say := make(chan string)
	w.host.Listen("198.51.100.1:8", func(c net.Conn) {
		for text := range say {
			_, _ = c.Write([]byte(text))
		}
		_ = c.Close()
	})
	quiet := w.mustDial("198.51.100.1:8")
	defer quiet.Close()
	defer close(say)
	c := w.mustDial("198.51.100.1:7")
	defer c.Close()
	for i := range 3 {
		if _, err := c.Write([]byte("before")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
			t.Fatal(i, err)
		}
		_ = w.frames.Close()
		if err := <-w.serve; err != nil {
			t.Fatal(err)
		}
		ours, theirs := networktest.SocketPair(t)
		time.Sleep(20 * time.Millisecond)
		w.attach(theirs)
		go func() { w.serve <- w.stack.Serve(context.Background(), ours) }()
		eventually(t, func() bool {
			w.stack.mu.Lock()
			defer w.stack.mu.Unlock()
			return w.stack.serving != nil
		})
		// The host may send first.
		say <- "hello"
		if _, err := io.ReadFull(quiet, make([]byte, 5)); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := w.stack.DialGuest(t.Context(),
		9); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Fatal(err)
	}
}

func TestPing(t *testing.T) {
	w := newWorld(t, Options{})
	ping := func(to tcpip.Address, wait time.Duration) (string, error) {
		queue := &waiter.Queue{}
		ep, err := w.net.NewEndpoint(icmp.ProtocolNumber4, ipv4.ProtocolNumber, queue)
		if err != nil {
			return "", errors.New(err.String())
		}
		defer ep.Close()
		entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr)
		queue.EventRegister(&entry)
		defer queue.EventUnregister(&entry)
		msg := header.ICMPv4(make([]byte, header.ICMPv4MinimumSize+4))
		msg.SetType(header.ICMPv4Echo)
		copy(msg[header.ICMPv4MinimumSize:], "ping")
		if _, err := ep.Write(strings.NewReader(string(msg)),
			tcpip.WriteOptions{To: &tcpip.FullAddress{Addr: to}}); err != nil {
			return "", errors.New(err.String())
		}
		select {
		case <-ready:
		case <-time.After(wait):
			return "", errors.New("timeout")
		}
		var out strings.Builder
		if _, err := ep.Read(&out, tcpip.ReadOptions{}); err != nil {
			return "", errors.New(err.String())
		}
		return out.String(), nil
	}
	for _, last := range []byte{2, 3} {
		if got, err := ping(address(10, 0, 2, last), time.Minute); err != nil ||
			!strings.HasSuffix(got, "ping") {
			t.Errorf(".%d: %q, %v", last, got, err)
		}
	}
	if got, err := ping(address(8, 8, 8, 8), 300*time.Millisecond); err == nil {
		t.Errorf("8.8.8.8 answered %q", got)
	}
	if r := w.log.lastRefusal(t); r.Protocol != "icmp" || r.Address.Addr().String() != "8.8.8.8" {
		t.Errorf("%+v", r)
	}
}

func TestUDP(t *testing.T) {
	t.Parallel() // it waits for limits of seconds
	w := newWorld(t, Options{Policy: network.Policy{Allow: networktest.Rules(t, "10.9.0.0/16")}},
		func(l *limits) { l.flowIdle = 2 * time.Second; l.flows = 20 })
	w.host.Listen("198.51.100.1:123", udpEcho)
	w.host.Listen("10.9.1.1:53", udpEcho)
	for _, to := range []string{"198.51.100.1:123", "10.9.1.1:53"} {
		c := w.dialUDP(to)
		for _, size := range []int{1, 1400, 9000, 60000} {
			if _, err := c.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 65535)
			if n, err := c.Read(buf); err != nil || n != size {
				t.Fatalf("%s: %d of %d bytes, %v", to, n, size, err)
			}
		}
		_ = c.Close()
	}
	// Refused, with an immediate answer.
	c := w.dialUDP("192.168.1.1:53")
	defer c.Close()
	_, _ = c.Write([]byte("x"))
	if _, err := readUDP(c, make([]byte, 10)); err == nil ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	// No more flows than allowed; idle flows end.
	for i := range 100 {
		c := w.dialUDP("198.51.100.1:123")
		defer c.Close()
		_, _ = c.Write([]byte{byte(i)})
	}
	eventually(t, func() bool { return w.stack.flows.used.Load() == 20 })
	eventually(t, func() bool { return w.stack.flows.used.Load() == 0 })
	ended := w.log.connections(t, 20)
	if c := ended[len(ended)-1]; c.Protocol != "udp" || c.Sent != 1 || c.Received != 1 {
		t.Errorf("%+v", c)
	}
}

func TestUDPUnderNameRules(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Only: true, Allow: networktest.Rules(t,
		"time.example.com:123", "web.example.com:443", "any.example.com")}})
	for name, a := range map[string]string{"time.example.com": "198.51.100.1",
		"web.example.com": "198.51.100.2", "any.example.com": "198.51.100.3"} {
		w.host.Name(name, a)
		w.ask(name, 1)
		for _, port := range []string{":123", ":443"} {
			w.host.Listen(a+port, udpEcho)
		}
	}
	for to, want := range map[string]bool{"198.51.100.1:123": true, "198.51.100.1:443": false,
		"198.51.100.2:443": false, "198.51.100.3:123": false, "198.51.100.4:123": false} {
		c := w.dialUDP(to)
		_, _ = c.Write([]byte("x"))
		n, err := readUDP(c, make([]byte, 10))
		if (n == 1 && err == nil) != want {
			t.Errorf("%s: %d, %v", to, n, err)
		}
		if !want && !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", to, err)
		}
		_ = c.Close()
	}
}

// TestManyAtOnce does the work of many guests at once, under the race detector.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t, Options{Policy: network.Policy{Deny: networktest.Rules(t, "198.51.100.66",
		"no.example")}})
	w.host.Listen("198.51.100.1:7", networktest.Echo)
	w.host.Name("good.example", "198.51.100.1")
	var wg sync.WaitGroup
	var fine atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 40 {
				c, err := w.dial("198.51.100.1:7")
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
				_, _ = c.Write([]byte("hello"))
				_ = c.CloseWrite()
				if b, err := io.ReadAll(c); err == nil && string(b) == "hello" {
					fine.Add(1)
				}
				_ = c.Close()
				if _, err := w.dial("198.51.100.66:7"); err == nil {
					t.Error("what is denied was reached")
				}
				_ = w.ask("good.example", 1)
				_ = w.stack.Totals()
			}
		})
	}
	wg.Wait()
	if fine.Load() != 320 {
		t.Errorf("%d of 320 echoes", fine.Load())
	}
	if n := len(w.log.connections(t, 320)); n != 320 {
		t.Errorf("%d connections", n)
	}
}

// readUDP reads a datagram, or the ICMP error for a datagram: gonet does not wake up for the error
// alone.
func readUDP(c *gonet.UDPConn, b []byte) (n int, err error) {
	for range 6000 {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) //wait: the loop polls
		var timeout net.Error
		if n, err = c.Read(b); err == nil || !errors.As(err, &timeout) || !timeout.Timeout() {
			return n, err
		}
	}
	return n, err
}

// TestStackWithin checks that a stack whose policy is within the host's reaches nothing that a
// stack with the host's policy alone does not, by answered names and by dialed connections.
func TestStackWithin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		document, host := networktest.EdgePolicy().Draw(rt, "document"),
			networktest.EdgePolicy().Draw(rt, "host")
		both := document
		both.Within = []network.Policy{host}
		answers := map[string]string{}
		for _, n := range []string{"corp.example", "db.corp.example", "web.example"} {
			answers[n] = rapid.SampledFrom(
				networktest.EdgeAddrs[:len(networktest.EdgeAddrs)-5]).Draw(rt, n)
		}
		port := rapid.SampledFrom(networktest.EdgePorts).Draw(rt, "port")
		says := rapid.SampledFrom([]string{"corp.example", "db.corp.example", "web.example",
			""}).Draw(rt, "greeting")
		reach := func(p network.Policy, wait time.Duration, names []string) (all []string) {
			w := newWorld(t, Options{Policy: p}, func(l *limits) { l.hello = wait })
			defer w.stack.Close()
			hello := []byte("anything\n")
			if says != "" {
				hello = networktest.HTTPRequest(says)
			}
			for name, a := range answers {
				w.host.Name(name, a)
				w.host.Listen(fmt.Sprintf("%s:%d", a, port), func(c net.Conn) {
					defer c.Close()
					if n, _ := c.Read(make([]byte, 1)); n == 1 {
						_, _ = c.Write([]byte(
							"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
					}
				})
			}
			for _, name := range names {
				for _, a := range addresses(w.ask(name, dnsmessage.TypeA)) {
					all = append(all, "answer "+name+" "+a)
				}
			}
			for _, a := range answers {
				if strings.HasPrefix(a, "127.") {
					continue // the guest's own loopback
				}
				to := fmt.Sprintf("%s:%d", a, port)
				c, err := w.dial(to)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(5*time.Second + 2*wait)) // some of the servers never answer
				_, _ = c.Write(hello)
				// The proxy may keep the connection open after an answer, so the end is not awaited.
				var b []byte
				for one := make([]byte, 256); !bytes.Contains(b, []byte("\r\n\r\n")); {
					n, err := c.Read(one)
					b = append(b, one[:n]...)
					if err != nil {
						break
					}
				}
				if strings.Contains(string(b), " 200 ") {
					all = append(all, "served "+to)
				}
				_ = c.Close()
			}
			for _, d := range w.host.Dials() {
				all = append(all, "dial "+d)
			}
			return all
		}
		const short, long = 50 * time.Millisecond, 10 * time.Second
		names := slices.Collect(maps.Keys(answers))
		alone, patient := reach(host, short, names), false
		within := reach(both, short, names)
		for _, what := range within {
			if !slices.Contains(alone, what) && !patient {
				// A busy machine may be too slow for the short wait, by which alone only has less. And a
				// name that the document refuses has no address, so what is denied to the name alone is
				// not denied there: the guest may as well not ask for it.
				answered := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
					return !slices.Contains(within, "answer "+name+" "+answers[name])
				})
				alone = append(reach(host, long, names), reach(host, long, answered)...)
				patient = true
			}
			if !slices.Contains(alone, what) {
				rt.Fatalf("%s, which the host alone does not let: %q", what, alone)
			}
		}
	})
}
