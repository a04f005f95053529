package doors

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// bounded is a listener that bounds the connections at one time. Others wait in the queue of the
// system, so that callers of a door leave the server's files to others. One address has a part of the
// places, and more of its connections are closed: nobody needs a token to connect.
type bounded struct {
	net.Listener
	places chan struct{}
	ended  chan struct{}
	end    func()

	proxies []netip.Prefix // whose connections are those of many
	most    int            // of an address

	mu  sync.Mutex
	per map[netip.Prefix]int
}

// partOfAddress is the part of all places that an address may have, as at the gateway.
const partOfAddress = 4

// bound bounds l. The setting listen.proxies, which was checked, names whose connections are those of
// many callers.
func bound(l net.Listener, most int, proxies []string) *bounded {
	b := &bounded{Listener: l, places: make(chan struct{}, most), ended: make(chan struct{}),
		most: max(most/partOfAddress, 1), per: map[netip.Prefix]int{}}
	for _, text := range proxies {
		if p, err := netip.ParsePrefix(text); err == nil {
			b.proxies = append(b.proxies, p)
		}
	}
	b.end = sync.OnceFunc(func() { close(b.ended) })
	return b
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.places <- struct{}{}:
	case <-b.ended:
		return nil, net.ErrClosed
	}
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			<-b.places
			return nil, err
		}
		from := b.addressOf(c)
		if b.enter(from) {
			return &placed{Conn: c, free: sync.OnceFunc(func() { b.leave(from); <-b.places })}, nil
		}
		_ = c.Close() // one too many
	}
}

// addressOf returns the address that a connection counts for; the zero value: none.
func (b *bounded) addressOf(c net.Conn) netip.Prefix {
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if slices.ContainsFunc(b.proxies, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return netip.Prefix{}
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64 // which one host has
	}
	return netip.PrefixFrom(ip, bits).Masked()
}

func (b *bounded) enter(from netip.Prefix) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !from.IsValid() {
		return true
	}
	if b.per[from] >= b.most {
		return false
	}
	b.per[from]++
	return true
}

func (b *bounded) leave(from netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.per[from]--; b.per[from] <= 0 {
		delete(b.per, from)
	}
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.end()
	return b.Listener.Close()
}

// A placed connection frees its place when it is closed.
type placed struct {
	net.Conn
	free func()
}

// NetConn returns the connection below, as that of a tls.Conn does.
func (c *placed) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *placed) Close() error {
	defer c.free()
	return c.Conn.Close()
}
