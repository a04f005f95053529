package fixedport

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"
)

// Bounds of a Past. Whoever leaves many ports shortens the rest of those that were left first.
const (
	rest    = time.Hour
	maxPast = (End - First) / 2
)

// A Past remembers whose the ports were that were left lately: addresses that lead to a port are still
// known, and would reach its next owner. The zero value remembers nothing. It is safe for concurrent use.
type Past struct {
	mu    sync.Mutex
	of    map[string]left // by port
	order []string        // of of, the first that was left first
}

type left struct {
	owner string
	at    time.Time
}

// Listen is the function Listen without ports that were another owner's lately.
func (p *Past) Listen(ctx context.Context, host, owner string) (net.Listener, error) {
	for range attempts {
		l, err := Listen(ctx, host)
		if err != nil || !p.others(l.Addr().String(), owner, time.Now()) {
			return l, err
		}
		_ = l.Close()
	}
	return nil, errors.New("no port from " + strconv.Itoa(First) + " to " + strconv.Itoa(End-1) +
		" is found that was not in use lately")
}

// Leave notes that an owner has left the port of an address.
func (p *Past) Leave(address, owner string) { p.leave(address, owner, time.Now()) }

func (p *Past) leave(address, owner string, now time.Time) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]left{}
	}
	if _, has := p.of[port]; !has {
		p.order = append(p.order, port)
	}
	p.of[port] = left{owner, now}
	if len(p.order) > maxPast {
		delete(p.of, p.order[0])
		p.order = p.order[1:]
	}
}

// others reports whether the port of an address was another owner's lately.
func (p *Past) others(address, owner string, now time.Time) bool {
	_, port, err := net.SplitHostPort(address)
	p.mu.Lock()
	defer p.mu.Unlock()
	x, has := p.of[port]
	return err == nil && has && x.owner != owner && now.Sub(x.at) < rest
}
