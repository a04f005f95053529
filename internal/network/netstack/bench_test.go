package netstack

import (
	"io"
	"net"
	"testing"
	"time"
	"turnstone.dev/turnstone/internal/network/networktest"
)

const megabyte = 1 << 20

// BenchmarkDownload transfers bytes from the host to the guest and back, each through both stacks
// of the test: a real guest's own stack runs on its own CPUs.
func BenchmarkDownload(b *testing.B) {
	w := newWorld(b, Options{})
	w.host.Listen("198.51.100.1:80", func(c net.Conn) {
		defer c.Close()
		buf := make([]byte, megabyte)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	})
	c := w.mustDial("198.51.100.1:80")
	defer c.Close()
	_ = c.SetDeadline(time.Time{})
	b.SetBytes(megabyte)
	buf := make([]byte, megabyte)
	for b.Loop() {
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpload(b *testing.B) {
	w := newWorld(b, Options{})
	got := make(chan int, 1)
	w.host.Listen("198.51.100.1:80", func(c net.Conn) {
		n, _ := io.Copy(io.Discard, c)
		got <- int(n)
		_ = c.Close()
	})
	c := w.mustDial("198.51.100.1:80")
	_ = c.SetDeadline(time.Time{})
	b.SetBytes(megabyte)
	buf := make([]byte, megabyte)
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	_ = c.CloseWrite()
	<-got
	_ = c.Close()
}

// BenchmarkConnection measures connections in sequence: open, one byte there and back, close.
func BenchmarkConnection(b *testing.B) {
	w := newWorld(b, Options{}, func(l *limits) { l.openRate, l.openBurst = 1e9, 1e9 })
	w.host.Listen("198.51.100.1:7", networktest.Echo)
	one := make([]byte, 1)
	for b.Loop() {
		c, err := w.dial("198.51.100.1:7")
		if err != nil {
			b.Fatal(err)
		}
		_, _ = c.Write(one)
		if _, err := io.ReadFull(c, one); err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}

// BenchmarkRoundTrip measures a byte there and back on an open connection.
func BenchmarkRoundTrip(b *testing.B) {
	w := newWorld(b, Options{})
	w.host.Listen("198.51.100.1:7", networktest.Echo)
	c := w.mustDial("198.51.100.1:7")
	defer c.Close()
	_ = c.SetDeadline(time.Time{})
	one := make([]byte, 1)
	for b.Loop() {
		_, _ = c.Write(one)
		if _, err := io.ReadFull(c, one); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	w := newWorld(b, Options{})
	w.host.Name("good.example", "198.51.100.1")
	for b.Loop() {
		w.ask("good.example", 1)
	}
}

func BenchmarkRefusedConnection(b *testing.B) {
	w := newWorld(b, Options{})
	for b.Loop() {
		if _, err := w.dial("192.168.1.1:80"); err == nil {
			b.Fatal("reached")
		}
	}
}

func BenchmarkNewAndClose(b *testing.B) {
	for b.Loop() {
		s, err := New(Options{})
		if err != nil {
			b.Fatal(err)
		}
		_ = s.Close()
	}
}

func BenchmarkClientHello(b *testing.B) {
	hello := networktest.ClientHello(b, "api.example.com")
	for b.Loop() {
		r := &recorder{seen: append([]byte(nil), hello...), err: io.EOF}
		if g := parseGreeting(r); g.Name != "api.example.com" {
			b.Fatal(g)
		}
	}
}
