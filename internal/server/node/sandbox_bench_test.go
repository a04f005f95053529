package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/gateway"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/websocket"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// The sandbox of BenchmarkSandbox, which runs already: its state directory and its ID.
const (
	homeVariable    = "TURNSTONE_BENCH_HOME"
	sandboxVariable = "TURNSTONE_BENCH_SANDBOX"
)

// inClear is the ID under which a twoWays opens its sandbox without a channel.
const inClear = "sb_000000000000000000"

// twoWays is a sandbox that is also reached without a channel, over the same connections.
type twoWays struct {
	*sandboxes.Store
	id turnstone.SandboxID
}

func (w twoWays) OpenChannel(ctx context.Context, id turnstone.SandboxID) (
	sandboxes.ChannelStream, error) {
	if id != inClear {
		return w.Store.OpenChannel(ctx, id)
	}
	c, err := w.Dial(ctx, w.id)
	if err != nil {
		return nil, err
	}
	return c.(sandboxes.ChannelStream), nil
}

// anyone accepts every token, and everywhere knows one node.
type anyone struct{}

func (anyone) Verify(context.Context, string) (auth.Principal, error) {
	return auth.Principal{Issuer: "x", Tenant: "acme", Subject: "s", TokenID: "t",
		Scopes: auth.AllScopes()}, nil
}

func (anyone) Still(auth.Principal) error { return nil }

type everywhere struct{ at string }

func (e everywhere) LocateChannel(context.Context, *connect.Request[v1.LocateChannelRequest]) (
	*connect.Response[v1.LocateChannelResponse], error) {
	return connect.NewResponse(&v1.LocateChannelResponse{Node: "n1", Address: e.at}), nil
}

// A bothWays is a gateway and a node before a sandbox.
type bothWays struct {
	w       twoWays
	n       *node.Node
	gateway string // address
}

func newBothWays(b *testing.B) bothWays {
	w := twoWays{sandboxes.NewStore(os.Getenv(homeVariable)),
		turnstone.SandboxID(os.Getenv(sandboxVariable))}
	if w.id == "" {
		b.Skipf("%s and %s name no sandbox", homeVariable, sandboxVariable)
	}
	n := node.New(node.Options{Name: "n1", Key: signer(b, 1), Sandboxes: w})
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	inner, outer := listen(), listen()
	s := &http.Server{Handler: n.Handler()} //nolint:gosec // of this process alone
	go func() { _ = s.Serve(inner) }()
	g := gateway.New(gateway.Options{Verifier: anyone{}, Locator: everywhere{inner.Addr().String()},
		Control: http.NotFoundHandler(),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, outer, gateway.ServeOptions{}) }()
	b.Cleanup(func() {
		cancel()
		<-served
		_, _, _ = g.Close(), s.Close(), n.Close()
	})
	return bothWays{w, n, outer.Addr().String()}
}

// connect opens a connection of the wire to the sandbox.
func (b bothWays) connect(ctx context.Context, sealed bool) (*wire.Client, error) {
	id := turnstone.SandboxID(inClear)
	if sealed {
		id = b.w.id
	}
	dial := func(ctx context.Context) (io.ReadWriteCloser, error) {
		return websocket.Dialer{}.Dial(ctx, fmt.Sprintf(
			"ws://%s/turnstone/v1/sandboxes/%s/channel", b.gateway, id),
			http.Header{"Authorization": {"Bearer x"}})
	}
	if !sealed {
		stream, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return wire.NewClient(stream), nil
	}
	var trust key.Trust
	trust.Add(key.Entry{Key: b.n.PublicKey(), Role: key.Node})
	h := &remote.Host{About: string(id), Pins: &trust, Key: channel.NewKeyPair(),
		Dial: dial,
		Attest: func(ctx context.Context, k channel.PublicKey, nonce attest.Nonce) ([]byte, error) {
			s, err := b.n.AttestSandbox(ctx, id, node.Client{Key: k, Nonce: nonce})
			if err != nil {
				return nil, err
			}
			return s.Envelope, nil
		}}
	stream, err := h.Open(ctx)
	if err != nil {
		return nil, err
	}
	return wire.NewClient(stream), nil
}

// local opens a connection of the wire over the sandbox's local socket.
func (b bothWays) local(ctx context.Context) (*wire.Client, error) {
	c, err := b.w.Dial(ctx, b.w.id)
	if err != nil {
		return nil, err
	}
	return wire.NewClient(c), nil
}

// BenchmarkSandbox compares connections of the wire through a gateway to a sandbox, with and without
// a channel in them, alternately: how fast 64 MiB of output and of input are. For how long a process
// takes, it compares the channel with the local socket. The metrics are medians.
func BenchmarkSandbox(b *testing.B) {
	bytes := size.OfProgram().Of(64 << 20)
	w := newBothWays(b)
	run := func(c *wire.Client, in io.Reader, argv ...string) error {
		e, err := c.Start(b.Context(), wire.ProcessStartParams{Argv: argv}, wire.Stdio{In: in})
		if err == nil && e.Exit.ExitCode != 0 {
			err = fmt.Errorf("%s: exit status %d", argv[0], e.Exit.ExitCode)
		}
		return err
	}
	for _, kind := range []struct {
		name string
		run  func(*wire.Client) error
	}{
		{"output", func(c *wire.Client) error {
			return run(c, nil, "head", "-c", fmt.Sprint(bytes), "/dev/zero")
		}},
		{"input", func(c *wire.Client) error {
			return run(c, io.LimitReader(zeros{}, int64(bytes)), "sh", "-c", "cat >/dev/null")
		}},
		{"process", func(c *wire.Client) error { return run(c, nil, "true") }},
	} {
		b.Run(kind.name, func(b *testing.B) {
			var clients [2]*wire.Client
			for i := range clients {
				open := func() (*wire.Client, error) { return w.connect(b.Context(), i == 1) }
				if i == 0 && kind.name == "process" {
					open = func() (*wire.Client, error) { return w.local(b.Context()) }
				}
				c, err := open()
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close(); c.Wait() }()
				clients[i] = c
			}
			var took, cpu [2][]float64 // seconds; cpu is of this process: all but holder and sandbox
			for b.Loop() {
				for i, c := range clients {
					began, used := time.Now(), cpuTime()
					if err := kind.run(c); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(began).Seconds())
					cpu[i] = append(cpu[i], (cpuTime() - used).Seconds())
				}
			}
			plain, sealed := median(took[0]), median(took[1])
			b.ReportMetric(0, "ns/op") // of both
			if kind.name == "process" {
				b.ReportMetric(plain*1e3, "local-ms")
				b.ReportMetric(sealed*1e3, "channel-ms")
				return
			}
			b.ReportMetric(float64(bytes)/1e6/plain, "plain-MB/s")
			b.ReportMetric(float64(bytes)/1e6/sealed, "channel-MB/s")
			b.ReportMetric(plain/sealed, "channel:plain")
			b.ReportMetric(median(cpu[0])/float64(bytes)*1e9, "plain-cpu-s/GB")
			b.ReportMetric(median(cpu[1])/float64(bytes)*1e9, "channel-cpu-s/GB")
		})
	}
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
