package gateway

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/relay"
)

// A Verifier verifies tokens, and says later whether they still hold: see auth.TokenVerifier.
type Verifier interface {
	auth.Verifier
	Still(auth.Principal) error
}

// A Locator authorises channels and finds their nodes. The controller's handler is one, and so is a
// client of it.
type Locator interface {
	LocateChannel(context.Context, *connect.Request[v1.LocateChannelRequest]) (
		*connect.Response[v1.LocateChannelResponse], error)
}

// Options are the parts of a Gateway.
type Options struct {
	Name string // of the server, for WWW-Authenticate
	// Control gets the calls of callers whose token is verified, with auth.NewContext. Controller
	// returns one for a controller in another process.
	Control  http.Handler
	Verifier Verifier
	Locator  Locator
	// Dial connects to a node at an address of LocateChannel.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Plain serves the paths below PlainPath, if the node is in this process; nil: nobody does.
	Plain http.Handler
	// Proxies are the networks whose X-Forwarded-For is believed.
	Proxies []netip.Prefix
	// Origins are those of pages that may call from a browser, such as "https://app.example.org".
	Origins []string
	Limits  Limits
	// Refused is told of requests whose token was refused, with principal.CallerHeader; nil: nobody.
	Refused func(*http.Request, error)
	// Ready reports why callers should use another gateway now, and must answer soon; nil: what a
	// Verifier with the method Ready reports, such as an auth.TokenVerifier.
	Ready func(context.Context) error
	// Around returns a handler around that of all requests, which gives them a trail; nil: none.
	Around func(http.Handler) http.Handler
	Log    *slog.Logger // nil: none

	now func() time.Time // for rates; nil: time.Now
}

// Limits bound callers. Zero selects the defaults.
type Limits struct {
	Connections int // of the network at one time; default 10,000, and as many of unix sockets
	PerAddress  int // connections of one address or IPv6 network /64; default a quarter of those
	PerToken    int // requests and channels of a token at one time; default as PerAddress

	Handshake time.Duration // for TLS and for the head of a request, each; default 10 s
	Body      time.Duration // for a request's body; default 30 s
	Idle      time.Duration // how long a connection or a channel may be silent; default 5 min
	Stall     time.Duration // how long a caller may read nothing of an answer; default 1 min
	End       time.Duration // how long requests may run after the end of Serve; 0: not at all
	Recheck   time.Duration // between two checks of the tokens of running requests; default 1 s
	Request   int64         // bytes of a request's body; default 1 MiB

	Rate, Burst int // requests per second of a token; default 50 and 100
	// AddressRate and AddressBurst are the same of an address, for requests and for new connections
	// alike; default four times those of a token.
	AddressRate, AddressBurst int
}

func (l Limits) complete() Limits {
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&l.Handshake, 10 * time.Second}, {&l.Body, 30 * time.Second}, {&l.Idle, 5 * time.Minute},
		{&l.Stall, time.Minute}, {&l.Recheck, time.Second}} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if l.Request <= 0 {
		l.Request = 1 << 20
	}
	number := func(n *int, or int) {
		if *n <= 0 {
			*n = or
		}
	}
	number(&l.Connections, 10_000)
	number(&l.PerAddress, max(l.Connections/4, 1))
	number(&l.PerToken, max(l.Connections/4, 1))
	number(&l.Rate, 50)
	number(&l.Burst, max(100, l.Rate))
	number(&l.AddressRate, 4*l.Rate)
	number(&l.AddressBurst, 4*l.Burst)
	return l
}

// A Gateway is safe for concurrent use.
type Gateway struct {
	o         Options
	log       *slog.Logger
	refuser   *refuser
	network   *connections
	local     *connections // of unix sockets, which strangers cannot fill
	calls     *calls
	tokens    *rates[tokenKey]
	addresses *rates[netip.Prefix]
	connects  *rates[netip.Prefix]
	relayed   relay.Total
	channels  atomic.Int64 // that are open
	stop      func()
}

// New returns a gateway. Close it.
func New(o Options) *Gateway {
	o.Limits = o.Limits.complete()
	l := o.Limits
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.now == nil {
		o.now = time.Now
	}
	if v, ok := o.Verifier.(interface{ Ready() error }); ok && o.Ready == nil {
		o.Ready = func(context.Context) error { return v.Ready() }
	}
	g := &Gateway{o: o, log: o.Log, refuser: newRefuser(o.Name),
		network:   newConnections(l.Connections, l.PerAddress),
		local:     newConnections(l.Connections, l.Connections),
		calls:     newCalls(o.Verifier, l.PerToken),
		tokens:    newRates[tokenKey](l.Rate, l.Burst, o.now),
		addresses: newRates[netip.Prefix](l.AddressRate, l.AddressBurst, o.now),
		connects:  newRates[netip.Prefix](l.AddressRate, l.AddressBurst, o.now)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.calls.watch(ctx, l.Recheck)
	}()
	g.stop = func() { cancel(); <-done }
	return g
}

// Close ends all requests and channels at once. Serve, which ends first, ends them gracefully.
func (g *Gateway) Close() error {
	g.calls.end(false)
	g.stop()
	return nil
}

// Connections returns how many connections of callers are open, and how many there ever were.
func (g *Gateway) Connections() (open int, ever uint64) {
	open, ever = g.network.uses()
	more, before := g.local.uses()
	return open + more, ever + before
}

// Measure emits the numbers of connections and channels: see telemetry.Measurer.
func (g *Gateway) Measure(emit func(name string, value float64, labels ...string)) {
	emit("turnstone_gateway_connections", float64(g.network.size()), "network")
	emit("turnstone_gateway_connections", float64(g.local.size()), "socket")
	emit("turnstone_gateway_channels", float64(g.channels.Load()))
	sizes := g.relayed.Sizes()
	emit("turnstone_relay_bytes_total", float64(sizes.ToNode), "to_node")
	emit("turnstone_relay_bytes_total", float64(sizes.ToClient), "to_client")
}

// A ServeOptions says how Serve serves a listener.
type ServeOptions struct {
	TLS *tls.Config // nil: no TLS
	// Context returns the context of a connection, such as one with auth.NewContext for a unix
	// socket whose peer is known; nil: as it is.
	Context func(context.Context, net.Conn) context.Context
}
