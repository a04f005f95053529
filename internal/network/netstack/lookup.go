package netstack

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// The types of records that have no names in dnsmessage.
const (
	typeNULL  = 10
	typeSVCB  = 64
	typeHTTPS = 65
)

// resolve answers a question under the policy and its limits. Only lookups of addresses leave the
// host. A name has no AAAA and HTTPS records, because a guest has IPv4 only, and because an HTTPS
// record's keys would hide server names from the policy.
func (s *Stack) resolve(ctx context.Context, q dnsmessage.Question) reply {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if q.Class != dnsmessage.ClassINET {
		return reply{code: dnsmessage.RCodeNotImplemented}
	}
	if q.Type == dnsmessage.TypePTR {
		return s.resolvePTR(name)
	}
	if network.CheckName(name) != nil || network.LooksLikeAddress(name) ||
		len(name) > s.limits.nameLength {
		return reply{code: dnsmessage.RCodeNameError}
	}
	refuse := func(code dnsmessage.RCode, reason string, addr netip.Addr) reply {
		s.refuse(turnstone.Refusal{Protocol: "dns", Host: name, Address: netip.AddrPortFrom(addr,
			0),
			Reason: reason})
		return reply{code: code, reason: reason}
	}
	if name == network.HostName {
		return s.resolveHost(q.Type)
	}
	if v := s.judge.Load().Lookup(name); !v.Allowed {
		return refuse(dnsmessage.RCodeRefused, v.Reason, netip.Addr{})
	}
	switch q.Type {
	case dnsmessage.TypeA:
	case dnsmessage.TypeAAAA, dnsmessage.TypeCNAME, typeHTTPS, typeSVCB:
		return reply{code: s.cache.known(name)}
	default:
		return refuse(dnsmessage.RCodeNotImplemented, "only lookups of addresses are answered",
			netip.Addr{})
	}
	addrs, code := s.lookup(ctx, name)
	if code != dnsmessage.RCodeSuccess {
		r := reply{code: code}
		if code == dnsmessage.RCodeRefused {
			r.reason = "too many lookups"
		}
		return r
	}
	return s.filter(name, addrs, refuse)
}

// filter returns the addresses that the guest may learn, and remembers them.
func (s *Stack) filter(name string, addrs []netip.Addr,
	refuse func(dnsmessage.RCode, string, netip.Addr) reply) reply {
	var r reply
	var refused network.Verdict
	var which netip.Addr
	for _, a := range addrs {
		a = a.Unmap()
		if !a.Is4() {
			continue
		}
		if v := s.judge.Load().Answer(name, a); !v.Allowed {
			refused, which = v, a
			continue
		}
		if len(r.addrs) < network.MaxAnswers {
			s.names.Add(a, name)
			r.addrs = append(r.addrs, a.As4())
		}
	}
	if len(r.addrs) == 0 && refused.Reason != "" {
		return refuse(dnsmessage.RCodeRefused, refused.Reason, which)
	}
	return r
}

// resolveHost answers for the name of the host's loopback.
func (s *Stack) resolveHost(t dnsmessage.Type) reply {
	if !s.judge.Load().Loopback() {
		return reply{code: dnsmessage.RCodeNameError}
	}
	if t != dnsmessage.TypeA {
		return reply{}
	}
	return reply{addrs: [][4]byte{s.gateway.As4()}}
}

// resolvePTR answers with the name that the guest has an address from, without asking a server.
func (s *Stack) resolvePTR(name string) reply {
	parts := strings.Split(strings.TrimSuffix(name, ".in-addr.arpa"), ".")
	if len(parts) == 4 && strings.HasSuffix(name, ".in-addr.arpa") {
		a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		if err == nil {
			if host := s.names.Latest(a); host != "" {
				return reply{ptr: host}
			}
		}
	}
	return reply{code: dnsmessage.RCodeNameError}
}

// lookup asks the host's resolver, or returns a cached answer. Limits refuse lookups.
func (s *Stack) lookup(ctx context.Context, name string) ([]netip.Addr, dnsmessage.RCode) {
	if e, ok := s.cache.get(name); ok {
		return e.addrs, e.code
	}
	refusal := turnstone.Refusal{Protocol: "dns", Host: name}
	if !s.zones.allow(name) {
		refusal.Reason = "too many lookups below one domain"
		s.refuseLimit(&s.manyZone, refusal)
		return nil, dnsmessage.RCodeRefused
	}
	if !s.lookupRate.Allow() {
		refusal.Reason = "too many lookups"
		s.refuseLimit(&s.manyLookups, refusal)
		return nil, dnsmessage.RCodeRefused
	}
	s.counters.lookups.Add(1)
	ctx, cancel := context.WithTimeout(ctx, s.limits.lookupTime)
	defer cancel()
	// The final dot prevents the host's search domains. Both families are requested, so that a name
	// with only IPv6 addresses exists.
	addrs, err := s.resolver.LookupNetIP(ctx, "ip", name+".")
	var dnsErr *net.DNSError
	switch {
	case err == nil:
		s.cache.put(name, addrs, dnsmessage.RCodeSuccess)
		return addrs, dnsmessage.RCodeSuccess
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		s.cache.put(name, nil, dnsmessage.RCodeNameError)
		return nil, dnsmessage.RCodeNameError
	}
	return nil, dnsmessage.RCodeServerFailure
}

// lookupCache keeps answers of the host's resolver for a short time.
type lookupCache struct {
	mu     sync.Mutex
	byName map[string]cached
}

type cached struct {
	addrs []netip.Addr
	code  dnsmessage.RCode
	until time.Time
}

const (
	cacheLife = 30 * time.Second
	cacheSize = 1024
)

func newLookupCache() *lookupCache { return &lookupCache{byName: map[string]cached{}} }

func (c *lookupCache) get(name string) (cached, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byName[name]
	return e, ok && time.Now().Before(e.until)
}

// known returns the cached response code of name; RCodeSuccess if name is not cached.
func (c *lookupCache) known(name string) dnsmessage.RCode {
	if e, ok := c.get(name); ok {
		return e.code
	}
	return dnsmessage.RCodeSuccess
}

func (c *lookupCache) put(name string, addrs []netip.Addr, code dnsmessage.RCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if len(c.byName) >= cacheSize {
		for k, e := range c.byName {
			if now.After(e.until) || len(c.byName) >= cacheSize {
				delete(c.byName, k)
			}
		}
	}
	if len(addrs) > 2*network.MaxAnswers {
		addrs = addrs[:2*network.MaxAnswers]
	}
	c.byName[name] = cached{addrs: addrs, code: code, until: now.Add(cacheLife)}
}

// zones bounds the lookups below a domain. A tunnel needs many of them, because each lookup carries
// only some bytes in its name.
type zones struct {
	limit rate.Limit
	burst int

	mu     sync.Mutex
	byName map[string]*list.Element // of *zone
	order  *list.List
}

type zone struct {
	name string
	*rate.Limiter
}

// maxZones bounds the domains whose lookups are counted.
const maxZones = 512

func newZones(limit rate.Limit, burst int) *zones {
	return &zones{limit: limit, burst: burst, byName: map[string]*list.Element{}, order: list.New()}
}

// allow takes a lookup from the budget of name's domain: its last two labels.
func (z *zones) allow(name string) bool {
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		name = name[strings.LastIndexByte(name[:i], '.')+1:]
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	e := z.byName[name]
	if e == nil {
		if len(z.byName) >= maxZones {
			last := z.order.Back()
			delete(z.byName, last.Value.(*zone).name)
			z.order.Remove(last)
		}
		e = z.order.PushFront(&zone{name, rate.NewLimiter(z.limit, z.burst)})
		z.byName[name] = e
	}
	z.order.MoveToFront(e)
	return e.Value.(*zone).Allow()
}
