package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/server/relay"
)

// BenchmarkCarry sends 1 GiB through a relay, and through a channel through the same relay. All ends
// are in this process: one goroutine writes, one reads, two relay.
func BenchmarkCarry(b *testing.B) {
	bytes := size.OfProgram().Of(1 << 30)
	for _, name := range []string{"plain", "channel"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(bytes))
			before := cpuTime()
			for b.Loop() {
				if err := carry(b.Context(), name == "channel", int64(bytes)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpuTime()-before).Seconds()/(float64(b.N)*float64(bytes)/1e9), "cpu-s/GB")
		})
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// carry sends size bytes through a relay, and waits for their end.
func carry(ctx context.Context, sealed bool, size int64) error {
	near, front, err := tcpPair()
	if err != nil {
		return err
	}
	back, far, err := tcpPair()
	if err != nil {
		return err
	}
	relayed := make(chan error, 1)
	go func() { _, err := relay.Copy(ctx, front, back, relay.Options{}); relayed <- err }()
	var from, to io.ReadWriteCloser = near, far
	if sealed {
		if from, to, err = shake(ctx, near, far); err != nil {
			return err
		}
	}
	read := make(chan error, 1)
	go func() {
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, to, make([]byte, 256<<10))
		if err == nil && n != size {
			err = fmt.Errorf("%d of %d bytes arrived", n, size)
		}
		read <- err
	}()
	p := make([]byte, 256<<10)
	for left := size; left > 0; left -= int64(len(p)) {
		if _, err := from.Write(p); err != nil {
			return err
		}
	}
	if err := from.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	err = <-read
	_, _ = from.Close(), to.Close()
	return errors.Join(err, ignoreEnd(<-relayed))
}

// ignoreEnd ignores how a relay ended: the bytes were counted.
func ignoreEnd(err error) error {
	if relay.EndOf(err) != nil {
		return nil
	}
	return err
}

func tcpPair() (a, b net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	b, err = l.Accept()
	return a, b, err
}

// shake makes a channel between two ends.
func shake(ctx context.Context, near, far net.Conn) (client, server *channel.Conn, err error) {
	mine, theirs := channel.NewKeyPair(), channel.NewKeyPair()
	statement := turnstone.Digest("sha256:" + strings.Repeat("0", 64))
	known := &channel.Statements{Max: 1}
	if err := known.Add(statement, []channel.PublicKey{mine.Public},
		time.Now().Add(time.Hour)); err != nil {
		return nil, nil, err
	}
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		server, failed = channel.Server(ctx, far, channel.ServerConfig{Key: theirs, Registry: known})
	})
	client, err = channel.Client(ctx, near, channel.ClientConfig{Key: mine, Server: theirs.Public,
		Statement: statement})
	wg.Wait()
	return client, server, errors.Join(err, failed)
}
