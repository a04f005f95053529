package gateway

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // RFC 6455, 4.2.2
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/bench/size"
)

// A sink is a node that switches protocols and discards what comes, or is silent.
func sink(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				r, err := http.ReadRequest(bufio.NewReaderSize(c, 1<<10))
				if err != nil {
					return
				}
				sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") +
					"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"+
					"Connection: Upgrade\r\nSec-WebSocket-Accept: "+
					base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n")
				p := make([]byte, 256<<10)
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, p)
			}()
		}
	}()
	return l.Addr().String()
}

// channel opens a channel, of which the test writes the bytes.
func (c *child) channel() net.Conn {
	c.t.Helper()
	conn := c.connect(1)
	_, err := io.WriteString(conn, "GET /turnstone/v1/nodes/n1/channel HTTP/1.1\r\nHost: x\r\n"+
		"Authorization: Bearer x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	check(c.t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	check(c.t, err)
	if answer.StatusCode != http.StatusSwitchingProtocols {
		c.t.Fatal(answer.Status)
	}
	return conn
}

// BenchmarkIdle measures what a gateway keeps for a connection that has asked once, and for a
// channel that has carried 1 MiB: B/each is heap and stacks.
func BenchmarkIdle(b *testing.B) {
	for _, kind := range []string{"plain", "tls"} {
		for what, open := range map[string]func(c *child) net.Conn{
			"connection": func(c *child) net.Conn {
				conn := c.connect(1)
				if ask(b, conn) != http.StatusOK {
					b.Fatal("no answer")
				}
				return conn
			},
			"channel": func(c *child) net.Conn {
				conn := c.channel()
				_, err := conn.Write(make([]byte, 1<<20))
				check(b, err)
				return conn
			},
		} {
			b.Run(kind+"-"+what, func(b *testing.B) {
				for b.Loop() {
					b.ReportMetric(idle(b, kind, open), "B/each")
				}
			})
		}
	}
}

func idle(b *testing.B, kind string, open func(c *child) net.Conn) float64 {
	count := max(20, size.OfProgram().Of(500)) // fewer do not stand out of what the heap has anyway
	c := startChild(b, kind, sink(b))
	_ = open(c).Close() // what is made once
	for n := 1; n > 0; {
		_, _, n = c.stats()
	}
	before, _, _ := c.stats()
	for range count {
		conn := open(c)
		defer func() { _ = conn.Close() }()
	}
	//wait: the relay holds a buffer for a second after the last bytes; nothing is asserted
	time.Sleep(size.OfProgram().Time(2 * time.Second))
	after, _, n := c.stats()
	if n != count {
		b.Fatal(n)
	}
	return float64(after-before) / float64(count)
}

// BenchmarkThroughput sends b.N MiB through a channel. cpu-s/GB is the time of the gateway's
// process, which only carries them.
func BenchmarkThroughput(b *testing.B) {
	for _, kind := range []string{"plain", "tls"} {
		b.Run(kind, func(b *testing.B) {
			c := startChild(b, kind, sink(b))
			conn, p := c.channel(), make([]byte, 1<<20)
			defer func() { _ = conn.Close() }()
			b.SetBytes(1 << 20)
			_, before, _ := c.stats()
			b.ResetTimer()
			for range b.N {
				_, err := conn.Write(p)
				check(b, err)
			}
			b.StopTimer()
			_, after, _ := c.stats()
			gb := float64(b.N) * (1 << 20) / 1e9
			b.ReportMetric((after-before).Seconds()/gb, "cpu-s/GB")
			b.ReportMetric(gb/b.Elapsed().Seconds(), "GB/s")
		})
	}
}
