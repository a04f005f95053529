package peers

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/config"
)

// LeaderPath is where a controller says whether it leads.
const LeaderPath = "/turnstone/leader"

// Times of a Leader.
const (
	askEvery = time.Second            // whether the controller still leads
	askAgain = 200 * time.Millisecond // while none is known to lead
	askTime  = time.Second            // for an answer
	patience = 10 * time.Second       // of a request while none leads
	maxSaid  = 1 << 10                // of an answer, in bytes
)

// A Said is the answer of a controller.
type Said struct {
	Leads bool  `json:"leads"`
	Fence int64 `json:"fence"` // of the term in which it leads
}

// Leads returns the handler of LeaderPath.
func Leads(fence func() (int64, bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f, leads := fence()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Said{Leads: leads, Fence: f}) // the other role has gone
	})
}

// A Leader sends requests to that one of several controllers which leads, once Run runs. It is safe
// for concurrent use.
type Leader struct {
	all []*candidate
	log *slog.Logger
	ask chan struct{} // has one element if a request has failed

	mu    sync.Mutex
	now   *candidate
	known chan struct{} // closed while now leads, as far as is known
}

// A candidate is a controller.
type candidate struct {
	address string
	way     *http.Transport
	fence   int64 // of its last answer that it leads; only Run has it

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// Leader returns a way to the controllers at addresses.
func (p *Peers) Leader(addresses []string) *Leader {
	l := &Leader{log: p.log, ask: make(chan struct{}, 1), known: make(chan struct{})}
	for _, at := range addresses {
		c := &candidate{address: at, conns: map[net.Conn]struct{}{}}
		c.way = transport(func(ctx context.Context) (net.Conn, error) {
			conn, err := p.Dial(ctx, at, config.Controller, "h2")
			if err != nil {
				return nil, err
			}
			return c.keep(conn), nil
		})
		l.all = append(l.all, c)
	}
	l.now = l.all[0]
	return l
}

// A kept is a connection that its candidate can end.
type kept struct {
	net.Conn
	of *candidate
}

func (c *candidate) keep(conn net.Conn) net.Conn {
	k := &kept{conn, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[k] = struct{}{}
	return k
}

// Close closes the connection.
func (k *kept) Close() error {
	k.of.mu.Lock()
	delete(k.of.conns, k)
	k.of.mu.Unlock()
	return k.Conn.Close()
}

// end ends all connections, with the requests that run: a controller that is stopped in a debugger, or
// parted from this machine, does not end them.
func (c *candidate) end() {
	c.mu.Lock()
	var all []net.Conn
	for k := range c.conns {
		all = append(all, k)
	}
	c.mu.Unlock()
	for _, k := range all {
		_ = k.Close()
	}
}

// RoundTrip implements http.RoundTripper. While no controller is known to lead, a request waits.
func (l *Leader) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	known := l.known
	l.mu.Unlock()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-known:
	case <-t.C:
	case <-r.Context().Done():
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, context.Cause(r.Context())
	}
	l.mu.Lock()
	c := l.now
	l.mu.Unlock()
	a, err := c.way.RoundTrip(r)
	if err != nil || a.StatusCode == http.StatusServiceUnavailable {
		select {
		case l.ask <- struct{}{}:
		default:
		}
	}
	return a, err
}

// CloseIdleConnections closes connections without a request.
func (l *Leader) CloseIdleConnections() {
	for _, c := range l.all {
		c.way.CloseIdleConnections()
	}
}

// Run finds the controller that leads again and again, until ctx ends.
func (l *Leader) Run(ctx context.Context) {
	for {
		found := l.look(ctx)
		if ctx.Err() != nil {
			l.CloseIdleConnections()
			return
		}
		wait := askEvery
		if !found {
			wait = askAgain
		}
		select {
		case <-ctx.Done():
		case <-l.ask:
			// a storm of failed requests asks no more often than this
			select {
			case <-ctx.Done():
			case <-time.After(askAgain):
			}
		case <-time.After(wait):
		}
	}
}

// look asks the controller that led, and if it does not lead, all.
func (l *Leader) look(ctx context.Context) (found bool) {
	l.mu.Lock()
	now := l.now
	l.mu.Unlock()
	if l.leads(ctx, now) == nil {
		l.set(now)
		return true
	}
	best := (*candidate)(nil)
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, c := range l.all {
		asked.Go(func() {
			err := l.leads(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && (best == nil || c.fence > best.fence) {
				best = c
			}
		})
	}
	asked.Wait()
	if ctx.Err() != nil {
		return false
	}
	l.set(best)
	return best != nil
}

// set notes who leads; nil: nobody is known to.
func (l *Leader) set(c *candidate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := false
	select {
	case <-l.known:
		open = true
	default:
	}
	if c == nil {
		if open {
			l.known = make(chan struct{})
			l.log.Warn("no controller leads; trying again", "last", l.now.address)
		}
		return
	}
	if c != l.now || !open {
		l.log.Info("a controller leads", "address", c.address, "fence", c.fence)
	}
	if c != l.now {
		go l.now.end()
		l.now = c
	}
	if !open {
		close(l.known)
	}
}

var errStandby = errors.New("it waits as a standby")

// leads asks a controller whether it leads.
func (l *Leader) leads(ctx context.Context, c *candidate) error {
	ctx, end := context.WithTimeout(ctx, askTime)
	defer end()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://controller"+LeaderPath, nil)
	if err != nil {
		return err
	}
	a, err := c.way.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = a.Body.Close() }()
	var said Said
	err = json.NewDecoder(io.LimitReader(a.Body, maxSaid)).Decode(&said)
	switch {
	case a.StatusCode != http.StatusOK:
		return turnstone.Errorf("server.leader", turnstone.KindUnavailable, c.address,
			"answers with status %d", a.StatusCode)
	case err != nil:
		return err
	case !said.Leads:
		return errStandby
	}
	c.fence = said.Fence
	return nil
}
