package netstack

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"turnstone.dev/turnstone"
)

// The limits of a sandbox's network bound the host's memory, descriptors, ports and goroutines
// whatever a guest does.
type limits struct {
	connections int // concurrent TCP connections, including those that are being opened or closed
	// TCP connections that are being opened concurrently; others wait for the guest's retry
	opening     int
	flows       int           // concurrent UDP flows
	openRate    rate.Limit    // new connections and flows per second
	openBurst   int           // burst beyond openRate
	buffer      int           // bytes that wait in each direction of a TCP connection
	smallBuffer int           // the same, if more than half of the connections are in use
	dial        time.Duration // for the host to open a connection
	handshake   time.Duration // for the guest to complete a connection that the host has opened
	hello       time.Duration // for the guest to name its host, if the name is required
	flowIdle    time.Duration // a UDP flow without datagrams ends
	linger      time.Duration // for the guest to acknowledge the end of a connection

	lookups     int           // concurrent lookups
	lookupRate  rate.Limit    // lookups of the host per second
	lookupBurst int           // burst beyond lookupRate
	zoneRate    rate.Limit    // lookups per second below a domain of two labels
	zoneBurst   int           // burst beyond zoneRate
	nameLength  int           // bytes of a name in a lookup
	lookupTime  time.Duration // for the host to answer a lookup
	dnsConns    int           // concurrent TCP connections to the name server
	addresses   int           // addresses whose names are remembered
	remember    time.Duration // time since the last answer or use

	tellRate  rate.Limit // refusals per second that the Observer receives
	tellBurst int        // burst beyond tellRate
	quiet     time.Duration
}

func defaultLimits() limits {
	return limits{
		connections: 1024, opening: 256, flows: 512,
		openRate: 1000, openBurst: 2048,
		buffer: 256 << 10, smallBuffer: 64 << 10,
		dial: 20 * time.Second, handshake: 10 * time.Second, hello: 10 * time.Second,
		flowIdle: time.Minute, linger: 15 * time.Second,
		lookups: 64, lookupRate: 50, lookupBurst: 300, zoneRate: 5, zoneBurst: 100, nameLength: 200,
		lookupTime: 10 * time.Second, dnsConns: 16, addresses: 4096, remember: time.Hour,
		tellRate: 500, tellBurst: 4096, quiet: 5 * time.Second,
	}
}

type counters struct {
	connections, sent, received, lookups, refused, dropped, untold atomic.Int64
}

// Totals returns the stack's counters so far, also while Serve runs. Bytes of open connections
// count.
func (s *Stack) Totals() turnstone.NetworkTotals {
	c := &s.counters
	return turnstone.NetworkTotals{Connections: c.connections.Load(), Sent: c.sent.Load(),
		Received: c.received.Load(),
		Lookups:  c.lookups.Load(), Refused: c.refused.Load(), Dropped: c.dropped.Load(),
		Untold: c.untold.Load()}
}

// A burst passes the first of many equal events, and then each event after a quiet period.
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

// A gate bounds a number of concurrent entries.
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

// refuse counts and reports a refusal.
func (s *Stack) refuse(r turnstone.Refusal) {
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

// refuseLimit is refuse for a limit: it reports a burst once.
func (s *Stack) refuseLimit(b *burst, r turnstone.Refusal) {
	if b.first(time.Now(), s.limits.quiet) {
		s.refuse(r)
		return
	}
	s.counters.refused.Add(1)
	if s.observer != nil {
		s.counters.untold.Add(1)
	}
}
