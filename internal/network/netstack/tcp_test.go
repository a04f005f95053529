package netstack

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/networktest"
)

func TestEchoAndHalfClose(t *testing.T) {
	w := newWorld(t, Options{})
	w.host.Listen("198.51.100.1:7", networktest.Echo)
	c := w.mustDial("198.51.100.1:7")
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	_ = c.Close()
	ended := w.log.connections(t, 1)[0]
	if ended.Sent != 5 || ended.Received != 5 || ended.Protocol != "tcp" ||
		ended.Address.String() != "198.51.100.1:7" {
		t.Fatalf("%+v", ended)
	}
	if tot := w.stack.Totals(); tot.Connections != 1 || tot.Sent != 5 || tot.Received != 5 ||
		tot.Refused != 0 {
		t.Fatalf("%+v", tot)
	}
}

// TestHostHalfClose checks that the guest's data still arrives after the host has ended its half.
func TestHostHalfClose(t *testing.T) {
	w := newWorld(t, Options{})
	got := make(chan []byte, 1)
	w.host.Listen("198.51.100.1:7", func(c net.Conn) {
		_, _ = c.Write([]byte("bye"))
		_ = c.(closeWriter).CloseWrite()
		b, _ := io.ReadAll(c)
		got <- b
		_ = c.Close()
	})
	c := w.mustDial("198.51.100.1:7")
	b, err := io.ReadAll(c)
	if err != nil || string(b) != "bye" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := c.Write([]byte("still here")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if b := <-got; string(b) != "still here" {
		t.Fatalf("%q", b)
	}
}

func TestBigTransfersBothWays(t *testing.T) {
	w := newWorld(t, Options{})
	const size = 16 << 20
	down := make([]byte, size)
	_, _ = rand.Read(down)
	up := make([]byte, size)
	_, _ = rand.Read(up)
	got := make(chan [32]byte, 1)
	w.host.Listen("198.51.100.1:80", func(c net.Conn) {
		defer c.Close()
		var both sync.WaitGroup
		both.Go(func() { _, _ = c.Write(down); _ = c.(closeWriter).CloseWrite() })
		h := sha256.New()
		_, _ = io.Copy(h, c)
		both.Wait()
		got <- [32]byte(h.Sum(nil))
	})
	c := w.mustDial("198.51.100.1:80")
	go func() { _, _ = c.Write(up); _ = c.CloseWrite() }()
	b, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(b, down) {
		t.Fatalf("%d bytes of %d came down: %v", len(b), size, err)
	}
	if sum := <-got; sum != sha256.Sum256(up) {
		t.Fatal("what went up is not what was sent")
	}
	_ = c.Close()
	if ended := w.log.connections(t, 1)[0]; ended.Sent != size || ended.Received != size {
		t.Fatalf("%+v", ended)
	}
}

func TestHowConnectionsFail(t *testing.T) {
	w := newWorld(t, Options{}, func(l *limits) { *l = endless() })
	w.host.Fails["198.51.100.2:1"] = &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
	w.host.Fails["198.51.100.3:1"] = &net.OpError{Op: "dial", Err: errAny}
	for _, c := range []struct{ to, want string }{
		{"198.51.100.1:1", "refused"},
		{"198.51.100.2:1", "host"},
		{"198.51.100.3:1", "refused"},
		{"192.168.1.1:80", "refused"},
		{"169.254.169.254:80", "refused"},
		{"10.0.2.2:22", "refused"},
		{"10.0.2.3:80", "refused"},
		{"198.51.100.77:22", "refused"}, // the host's own
	} {
		_, err := w.dial(c.to)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.to, err)
		}
	}
	// A guest repeats a packet whose answer is late, and a refusal is then counted again.
	refused := map[string]bool{}
	w.log.mu.Lock()
	for _, r := range w.log.refused {
		refused[r.Address.String()] = true
	}
	w.log.mu.Unlock()
	if n := w.stack.Totals().Refused; n < 5 || len(refused) != 5 {
		t.Errorf("%d refused, at %v", n, refused)
	}
}

func TestReset(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	w := newWorld(t, Options{Dialer: &net.Dialer{},
		Policy: network.Policy{Allow: networktest.Rules(t, "127.0.0.1:"+port)}})
	// After the host's reset, the guest's connection is reset, too.
	c := w.mustDial("10.0.2.2:" + port)
	host, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = host.(*net.TCPConn).SetLinger(0)
	_ = host.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Fatalf("%v", err)
	}
	// After the guest's reset, the host's connection is reset, too.
	c = w.mustDial("10.0.2.2:" + port)
	if host, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if _, err := host.Write([]byte("unread data makes a close a reset")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_, _ = host.Read(make([]byte, 1))
	if _, err := c.Read(make([]byte, 1)); err != nil { // the data is there, and most of it unread
		t.Fatal(err)
	}
	_ = c.Close()
	_ = host.SetDeadline(time.Now().Add(2 * time.Minute))
	if _, err := host.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Fatalf("%v", err)
	}
}

// TestSlowReader checks that a guest that does not read stops the host, and holds no more than its
// buffers.
func TestSlowReader(t *testing.T) {
	w := newWorld(t, Options{})
	wrote := make(chan int, 1)
	w.host.Listen("198.51.100.1:80", func(c net.Conn) {
		defer c.Close()
		_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second)) //wait: a slower writer sends less
		n, _ := c.Write(make([]byte, 64<<20))
		wrote <- n
	})
	c := w.mustDial("198.51.100.1:80")
	defer c.Close()
	if n := <-wrote; n > 12<<20 {
		t.Fatalf("the host sent %d bytes that nobody read", n)
	}
	// Others are not affected.
	w.host.Listen("198.51.100.1:7", networktest.Echo)
	e := w.mustDial("198.51.100.1:7")
	_, _ = e.Write([]byte("x"))
	if _, err := io.ReadFull(e, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = e.Close()
}

func TestDialGuest(t *testing.T) {
	w := newWorld(t, Options{})
	serveGuest(t, w.guest, 8080, networktest.Echo)
	c, err := w.stack.DialGuest(t.Context(), 8080)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	_, _ = c.Write([]byte("in"))
	_ = c.(closeWriter).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "in" {
		t.Fatalf("%q, %v", b, err)
	}
	_ = c.Close()
	if _, err := w.stack.DialGuest(t.Context(), 8081); err == nil {
		t.Fatal("nothing listens there")
	}
}
