package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) { runChild(); goleak.VerifyTestMain(leaktest.Patient(m)) }

// transports make connected pairs: the relay's end and the peer's.
var transports = map[string]func(testing.TB) (relay, peer net.Conn){
	"unix": unixPair, "tcp": tcpPair, "tls": tlsPair,
}

func listenPair(t testing.TB, network, address string) (relay, peer net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	peer, err = net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if relay, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = relay.Close(), peer.Close() })
	return relay, peer
}

func tcpPair(t testing.TB) (relay, peer net.Conn) { return listenPair(t, "tcp", "127.0.0.1:0") }

func unixPair(t testing.TB) (relay, peer net.Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return listenPair(t, "unix", filepath.Join(dir, "s"))
}

var certificate = sync.OnceValues(func() (tls.Certificate, *tls.Config) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	client := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	client.ServerName = "example.com"
	return s.TLS.Certificates[0], client
})

func tlsPair(t testing.TB) (relay, peer net.Conn) {
	t.Helper()
	a, b := tcpPair(t)
	cert, config := certificate()
	server, client := tls.Server(a, &tls.Config{Certificates: []tls.Certificate{cert}}),
		tls.Client(b, config)
	shaken := make(chan error, 1)
	go func() { shaken <- server.Handshake() }()
	if err := errors.Join(client.Handshake(), <-shaken); err != nil {
		t.Fatal(err)
	}
	return server, client
}

// A running is a Copy in a goroutine, and its two peers.
type running struct {
	client, node net.Conn
	end          chan struct{}
	sizes        Sizes
	err          error
}

func start(ctx context.Context, t testing.TB, o Options,
	client, node func(testing.TB) (relay, peer net.Conn)) *running {
	t.Helper()
	a, c := client(t)
	b, n := node(t)
	r := &running{client: c, node: n, end: make(chan struct{})}
	go func() {
		defer close(r.end)
		r.sizes, r.err = Copy(ctx, a, b, o)
	}()
	t.Cleanup(func() { _, _ = c.Close(), n.Close(); <-r.end })
	return r
}

// wait returns how the relay ended.
func (r *running) wait() *EndError { <-r.end; return EndOf(r.err) }

// pattern is data whose parts differ.
func pattern(n int) []byte {
	p := make([]byte, n)
	sum := sha256.Sum256([]byte("pattern"))
	for i := 0; i < n; i += copy(p[i:], sum[:]) {
		sum = sha256.Sum256(sum[:])
	}
	return p
}

func closeWrite(t testing.TB, c net.Conn) {
	t.Helper()
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

// TestCopy: all bytes arrive in both directions at once, and each end of a stream is passed on
// while the other direction continues.
func TestCopy(t *testing.T) {
	for from, client := range transports {
		for to, node := range transports {
			t.Run(from+" "+to, func(t *testing.T) {
				r := start(t.Context(), t, Options{Idle: time.Minute, Write: time.Minute,
					Time: time.Hour, Bytes: 1 << 30}, client, node)
				up, down := pattern(3<<20+17), pattern(1<<20+5)
				var sent sync.WaitGroup
				sent.Go(func() {
					_, _ = r.client.Write(up)
					closeWrite(t, r.client)
				})
				got, err := io.ReadAll(r.node)
				if err != nil || !bytes.Equal(got, up) {
					t.Errorf("the node got %d bytes: %v", len(got), err)
				}
				sent.Go(func() { // after the client's end
					_, _ = r.node.Write(down)
					closeWrite(t, r.node)
				})
				if got, err = io.ReadAll(r.client); err != nil || !bytes.Equal(got, down) {
					t.Errorf("the client got %d bytes: %v", len(got), err)
				}
				sent.Wait()
				<-r.end
				if want := (Sizes{int64(len(up)), int64(len(down))}); r.err != nil ||
					r.sizes != want {
					t.Errorf("the relay ended with %+v, %v; want %+v", r.sizes, r.err, want)
				}
			})
		}
	}
}

// TestSmallMessages: each message passes before the next is sent, whatever its size.
func TestSmallMessages(t *testing.T) {
	for name, pair := range transports {
		t.Run(name, func(t *testing.T) {
			r := start(t.Context(), t, Options{}, pair, pair)
			for _, n := range []int{1, smallSize - 1, smallSize, smallSize + 1, 1, bufferSize,
				bufferSize + 1, 2, smallSize, 1 << 20, 1} {
				p, got := pattern(n), make([]byte, n)
				sent := make(chan error, 1)
				go func() { _, err := r.client.Write(p); sent <- err }()
				if _, err := io.ReadFull(r.node, got); err != nil || !bytes.Equal(got, p) {
					t.Fatalf("%d bytes: %v", n, err)
				}
				if err := <-sent; err != nil {
					t.Fatal(err)
				}
				if _, err := r.node.Write(p[:1]); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(r.client, got[:1]); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// reset makes a TCP connection end with RST.
func reset(t testing.TB, c net.Conn) {
	t.Helper()
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// TestEnds: each way in which a relay can end has a name, a side and a kind.
func TestEnds(t *testing.T) {
	fill := func(c net.Conn) { // until the relay no longer takes bytes
		_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
		for p := make([]byte, bufferSize); ; {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	}
	for name, test := range map[string]struct {
		options Options
		act     func(t *testing.T, r *running, cancel context.CancelFunc)
		side    Side
		reason  Reason
		kind    turnstone.Kind
	}{
		"the client resets": {Options{}, func(t *testing.T, r *running, _ context.CancelFunc) {
			reset(t, r.client)
		}, Client, Broken, turnstone.KindDead},
		"the node resets": {Options{}, func(t *testing.T, r *running, _ context.CancelFunc) {
			reset(t, r.node)
		}, Node, Broken, turnstone.KindDead},
		"the node does not read": {Options{Write: 100 * time.Millisecond},
			func(_ *testing.T, r *running, _ context.CancelFunc) { fill(r.client) },
			Node, Stalled, turnstone.KindTimeout},
		"the client does not read": {Options{Write: 100 * time.Millisecond},
			func(_ *testing.T, r *running, _ context.CancelFunc) { fill(r.node) },
			Client, Stalled, turnstone.KindTimeout},
		"a stalled side without a limit is silent": {Options{Idle: 100 * time.Millisecond},
			func(_ *testing.T, r *running, _ context.CancelFunc) { fill(r.client) },
			Neither, Silent, turnstone.KindTimeout},
		"both are silent": {Options{Idle: 50 * time.Millisecond}, nil,
			Neither, Silent, turnstone.KindTimeout},
		"silent after one side's end": {Options{Idle: 50 * time.Millisecond},
			func(_ *testing.T, r *running, _ context.CancelFunc) { // on a busy machine the relay may have ended
				_ = r.client.(*net.TCPConn).CloseWrite()
			},
			Neither, Silent, turnstone.KindTimeout},
		"the time is over": {Options{Time: 50 * time.Millisecond, Idle: time.Hour},
			func(_ *testing.T, r *running, _ context.CancelFunc) {
				go func() { _, _ = io.Copy(io.Discard, r.node) }()
				fill(r.client)
			},
			Neither, TooLong, turnstone.KindTimeout},
		"the bytes are used up": {Options{Bytes: 1 << 20},
			func(_ *testing.T, r *running, _ context.CancelFunc) {
				go func() { _, _ = io.Copy(io.Discard, r.node) }()
				fill(r.client)
			}, Neither, TooMuch, turnstone.KindExhausted},
		"canceled": {Options{}, func(_ *testing.T, _ *running, cancel context.CancelFunc) {
			cancel()
		}, Neither, Canceled, turnstone.KindCanceled},
		"canceled while a side does not read": {Options{Write: time.Hour},
			func(_ *testing.T, r *running, cancel context.CancelFunc) {
				time.AfterFunc(20*time.Millisecond, cancel) //wait: any moment is right
				fill(r.client)
			}, Neither, Canceled, turnstone.KindCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := start(ctx, t, test.options, tcpPair, tcpPair)
			if test.act != nil {
				test.act(t, r, cancel)
			}
			e := r.wait()
			if e == nil || e.Side != test.side || e.Reason != test.reason ||
				turnstone.KindOf(r.err) != test.kind {
				t.Fatalf("the relay ended with %#v, kind %s: %v", e, turnstone.KindOf(r.err), r.err)
			}
			for _, c := range []net.Conn{r.client, r.node} {
				_ = c.SetReadDeadline(time.Now().Add(time.Minute))
				_, err := io.Copy(io.Discard, c)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("a connection is still open")
				}
			}
		})
	}
}

// TestLeaves: a side that says its last word and leaves, as a client does after its closing frame, is
// not a broken connection, even if the answer of the other side no longer reaches it. The other side
// gets the last word.
func TestLeaves(t *testing.T) {
	for name, pair := range transports {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				r := start(t.Context(), t, Options{}, pair, tcpPair)
				_, _ = io.WriteString(r.client, "hello")
				word := make([]byte, 5)
				if _, err := io.ReadFull(r.node, word); err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(r.client, "bye")
				_ = r.client.Close()
				for { // until the relay has tried in vain, and has ended
					if _, err := r.node.Write(make([]byte, 1)); err != nil {
						break
					}
				}
				if r.wait(); r.err != nil {
					t.Fatal(r.err)
				}
				if got, err := io.ReadAll(r.node); err == nil && string(got) != "bye" {
					t.Fatalf("%q", got)
				}
			}
		})
	}
}

// TestStalledTLS: a peer that does not read a TLS connection cannot hold a relay that ends.
func TestStalledTLS(t *testing.T) {
	r := start(t.Context(), t, Options{Write: 100 * time.Millisecond}, tlsPair, tlsPair)
	_ = r.node.SetWriteDeadline(time.Now().Add(time.Minute))
	for p := make([]byte, bufferSize); ; {
		if _, err := r.node.Write(p); err != nil {
			break
		}
	}
	if e := r.wait(); e == nil || e.Side != Client || e.Reason != Stalled {
		t.Fatalf("the relay ended with %#v", e)
	}
	// No alert says that the stream ended as its writer wanted.
	if _, err := io.Copy(io.Discard, r.client); err == nil {
		t.Error("the client got an orderly end of a stream that was cut")
	}
}

// TestBackPressure: a peer that does not read stops the other; the relay holds at most one buffer.
func TestBackPressure(t *testing.T) {
	a, client := unixPair(t)
	b, node := unixPair(t)
	for _, c := range []net.Conn{a, b, client, node} {
		if err := errors.Join(c.(*net.UnixConn).SetWriteBuffer(bufferSize),
			c.(*net.UnixConn).SetReadBuffer(bufferSize)); err != nil {
			t.Fatal(err)
		}
	}
	end := make(chan struct{})
	go func() { defer close(end); _, _ = Copy(t.Context(), a, b, Options{}) }()
	_ = client.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)) //wait: a slower writer sends less
	took := 0
	for p := make([]byte, 1024); ; {
		n, err := client.Write(p)
		took += n
		if err != nil {
			break
		}
	}
	// The kernel counts its own structures too, and doubles what is asked for.
	if limit := 8 * bufferSize; took > limit {
		t.Errorf("the relay took %d bytes that nobody read; want at most %d", took, limit)
	}
	_ = client.Close()
	if n, err := io.Copy(io.Discard, node); err != nil || n != int64(took) {
		t.Errorf("the node got %d of %d bytes: %v", n, took, err)
	}
	_ = node.Close()
	<-end
}

// TestWithoutHalfClose: a connection that cannot end one direction ends both.
func TestWithoutHalfClose(t *testing.T) {
	a, client := tcpPair(t)
	b, node := net.Pipe()
	end := make(chan error, 1)
	go func() { _, err := Copy(t.Context(), a, b, Options{}); end <- err }()
	closeWrite(t, client)
	if _, err := io.ReadAll(node); err != nil {
		t.Error(err)
	}
	if err := <-end; err != nil {
		t.Error(err)
	}
}

// TestDeadlinesAreCleared: a deadline from before, such as of an HTTP server, ends nothing.
func TestDeadlinesAreCleared(t *testing.T) {
	a, client := tcpPair(t)
	b, node := tcpPair(t)
	_ = errors.Join(a.SetDeadline(time.Unix(1, 0)), b.SetDeadline(time.Unix(1, 0)))
	end := make(chan error, 1)
	go func() { _, err := Copy(t.Context(), a, b, Options{}); end <- err }()
	_, _ = client.Write([]byte("x"))
	if _, err := io.ReadFull(node, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_, _ = client.Close(), node.Close()
	if err := <-end; err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}
