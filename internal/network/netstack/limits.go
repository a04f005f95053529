package netstack

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"turnstone.dev/turnstone/internal/network"
)

// Limits of one sandbox's network. They bound the host's memory, descriptors, ports
// and goroutines whatever a guest does.
type limits struct {
	connections int           // TCP connections at once, with those that are being opened or closed
	opening     int           // TCP connections that are being opened at once; further ones wait for the guest's next try
	flows       int           // UDP flows at once
	openRate    rate.Limit    // new connections and flows a second
	openBurst   int           // those at once, beyond openRate
	buffer      int           // bytes that wait in each direction of a TCP connection
	smallBuffer int           // the same, when more than half of the connections are in use
	dial        time.Duration // for the host to open a connection
	handshake   time.Duration // for the guest to complete one, once the host is there
	hello       time.Duration // for the guest to say what host it wants, where that has to be known
	flowIdle    time.Duration // a UDP flow without datagrams ends
	linger      time.Duration // for the guest to acknowledge the end of a connection

	lookups     int           // that are going on at once
	lookupRate  rate.Limit    // lookups a second that the host makes
	lookupBurst int           // those at once, beyond lookupRate
	zoneRate    rate.Limit    // lookups a second below one domain of two labels
	zoneBurst   int           // those at once, beyond zoneRate
	nameLength  int           // bytes of a name that is looked up
	lookupTime  time.Duration // for the host to answer a lookup
	dnsConns    int           // TCP connections to the name server at once
	addresses   int           // addresses whose names are remembered
	remember    time.Duration // how long after it was last answered or used

	tellRate  rate.Limit // refusals a second that the Observer is told of
	tellBurst int        // those at once, beyond tellRate
	quiet     time.Duration
}

func defaultLimits() limits {
	return limits{
		connections: 1024, opening: 256, flows: 512,
		openRate: 1000, openBurst: 2048,
		buffer: 256 << 10, smallBuffer: 64 << 10,
		dial: 20 * time.Second, handshake: 10 * time.Second, hello: 10 * time.Second, flowIdle: time.Minute, linger: 15 * time.Second,
		lookups: 64, lookupRate: 50, lookupBurst: 300, zoneRate: 5, zoneBurst: 100, nameLength: 200,
		lookupTime: 10 * time.Second, dnsConns: 16, addresses: 4096, remember: time.Hour,
		tellRate: 500, tellBurst: 4096, quiet: 5 * time.Second,
	}
}

type counters struct {
	connections, sent, received, lookups, refused, dropped, untold atomic.Int64
}

// Totals tells what went through the stack so far, also while it is served. Bytes of
// connections that are still open count.
func (s *Stack) Totals() network.Totals {
	c := &s.counters
	return network.Totals{Connections: c.connections.Load(), Sent: c.sent.Load(), Received: c.received.Load(),
		Lookups: c.lookups.Load(), Refused: c.refused.Load(), Dropped: c.dropped.Load(), Untold: c.untold.Load()}
}

// A burst lets the first of many equal events through, and the next one after a
// time without any.
type burst struct {
	mu   sync.Mutex
	last time.Time
}

func (b *burst) first(now time.Time, quiet time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	is := b.last.IsZero() || now.Sub(b.last) > quiet
	b.last = now
	return is
}

// A gate lets a number in at once.
type gate struct {
	max  int64
	used atomic.Int64
}

func (g *gate) enter() bool {
	if g.used.Add(1) > g.max {
		g.used.Add(-1)
		return false
	}
	return true
}

func (g *gate) leave() { g.used.Add(-1) }

// refuse counts and tells a refusal.
func (s *Stack) refuse(r network.Refusal) {
	s.counters.refused.Add(1)
	if s.observer == nil {
		return
	}
	if !s.tell.Allow() {
		s.counters.untold.Add(1)
		return
	}
	r.At = time.Now()
	s.observer.Refused(r)
}

// refuseLimit is refuse for a limit: a burst of it is told once.
func (s *Stack) refuseLimit(b *burst, r network.Refusal) {
	if b.first(time.Now(), s.limits.quiet) {
		s.refuse(r)
		return
	}
	s.counters.refused.Add(1)
	if s.observer != nil {
		s.counters.untold.Add(1)
	}
}
