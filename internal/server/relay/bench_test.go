//go:build unix

package relay

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkThroughput copies b.N MiB from a client to a node. cpu-s/GB is the time of this process,
// which only relays.
func BenchmarkThroughput(b *testing.B) {
	for _, kind := range []string{"tcp-tcp", "tcp-unix", "unix-unix"} {
		client, node, _ := strings.Cut(kind, "-")
		b.Run(kind, func(b *testing.B) { throughput(b, client == "tcp", node == "tcp") })
	}
}

func throughput(b *testing.B, clientTCP, nodeTCP bool) {
	listen := func(tcp bool) net.Listener {
		network, address := "unix", b.TempDir()+"/s"
		if tcp {
			network, address = "tcp", "127.0.0.1:0"
		}
		l, err := net.Listen(network, address)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = l.Close() })
		return l
	}
	from, to := listen(clientTCP), listen(nodeTCP)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(),
		fmt.Sprintf("%s=%s %s", childVariable, from.Addr(), to.Addr()))
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	client, err := from.Accept()
	if err != nil {
		b.Fatal(err)
	}
	node, err := to.Accept()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(1 << 20)
	before := cpu(b)
	b.ResetTimer()
	sizes, err := Copy(b.Context(), client, node, Options{Idle: time.Minute, Write: time.Minute,
		Bytes: int64(b.N) << 20})
	b.StopTimer()
	if e := EndOf(err); e == nil || e.Reason != TooMuch {
		b.Fatal(sizes, err)
	}
	used := cpu(b) - before
	b.ReportMetric(used.Seconds()/(float64(sizes.ToNode)/1e9), "cpu-s/GB")
	b.ReportMetric(float64(sizes.ToNode)/1e9/b.Elapsed().Seconds(), "GB/s")
}

// BenchmarkIdle measures what a relay keeps after both directions moved 1 MiB and are silent:
// B/relay is heap and stacks, without what the connections had before. What a TLS connection keeps
// for itself after its first bytes counts.
func BenchmarkIdle(b *testing.B) {
	for name, relays := range map[string]int{"unix": 1000, "tcp": 1000, "tls": 200} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(idle(b, relays, transports[name]), "B/relay")
			}
		})
	}
}

// An ends is a relay's two connections, and their peers.
type ends struct{ a, b, client, node net.Conn }

// strip frees the TLS state of the peers, which are in this process, too.
func strip(all []ends) (freed int64) {
	before := memory()
	for i := range all {
		if t, ok := all[i].client.(*tls.Conn); ok {
			all[i].client = t.NetConn()
		}
	}
	return before - memory()
}

func idle(b *testing.B, relays int, pair func(testing.TB) (relay, peer net.Conn)) float64 {
	connect := func() []ends {
		all := make([]ends, relays)
		for i := range all {
			e := &all[i]
			e.a, e.client = pair(b)
			e.b, e.node = unixPair(b)
		}
		return all
	}
	unused := strip(connect())
	all := connect()
	before := memory()
	done := make(chan struct{}, relays)
	for _, e := range all {
		go func() {
			_, _ = Copy(b.Context(), e.a, e.b, Options{Idle: time.Hour, Write: time.Minute})
			done <- struct{}{}
		}()
	}
	p, got := pattern(1<<20), make([]byte, 1<<20)
	for _, e := range all {
		for _, way := range [][2]net.Conn{{e.client, e.node}, {e.node, e.client}} {
			go func() { _, _ = way[0].Write(p) }()
			if _, err := io.ReadFull(way[1], got); err != nil {
				b.Fatal(err)
			}
		}
	}
	time.Sleep(2 * linger) //wait: the relays return their buffers after linger; nothing is asserted
	grown := memory() - before
	grown -= strip(all) - unused // what the peers' TLS has grown by
	for _, e := range all {
		_, _ = e.client.Close(), e.node.Close()
	}
	for range all {
		<-done
	}
	return float64(grown) / float64(relays)
}

// memory returns the bytes of heap and stacks that are in use.
func memory() int64 {
	var m runtime.MemStats
	for range 3 { // a pool keeps its contents for two cycles
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
