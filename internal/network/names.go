package network

import (
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// namesPerAddress bounds the remembered names of an address; the name with the oldest answer is
// removed first.
const namesPerAddress = 32

// Names remembers the names in the guest's DNS answers by address.
type Names struct {
	max  int
	life time.Duration

	mu     sync.Mutex
	byAddr map[netip.Addr]*list.Element // of named
	order  *list.List                   // the most recently used first
}

type named struct {
	addr  netip.Addr
	names []string // the most recently answered first
	until time.Time
}

// NewNames returns an empty Names that keeps the names of at most the given number of addresses,
// each for the given time after its last use.
func NewNames(most int, life time.Duration) *Names {
	return &Names{max: most, life: life, byAddr: map[netip.Addr]*list.Element{}, order: list.New()}
}

// Add remembers that addr was answered for name.
func (n *Names) Add(addr netip.Addr, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.get(addr)
	if e == nil {
		if len(n.byAddr) >= n.max {
			n.remove(n.order.Back())
		}
		e = &named{addr: addr}
		n.byAddr[addr] = n.order.PushFront(e)
	}
	e.until = time.Now().Add(n.life)
	if i := slices.Index(e.names, name); i >= 0 {
		e.names = slices.Delete(e.names, i, i+1)
	}
	e.names = slices.Insert(e.names, 0, name)
	if len(e.names) > namesPerAddress {
		e.names = slices.Delete(e.names, namesPerAddress, len(e.names))
	}
}

// Of returns the names that addr was answered for, the latest first, and extends their time,
// because the guest still uses them.
func (n *Names) Of(addr netip.Addr) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.get(addr)
	if e == nil {
		return nil
	}
	e.until = time.Now().Add(n.life)
	return slices.Clone(e.names)
}

// Latest returns the name that addr was last answered for, or "".
func (n *Names) Latest(addr netip.Addr) string {
	if names := n.Of(addr); len(names) > 0 {
		return names[0]
	}
	return ""
}

// has reports whether addr was answered for name.
func (n *Names) has(addr netip.Addr, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.get(addr)
	return e != nil && slices.Contains(e.names, name)
}

// get is called with mu held.
func (n *Names) get(addr netip.Addr) *named {
	el := n.byAddr[addr]
	if el == nil {
		return nil
	}
	e := el.Value.(*named)
	if time.Now().After(e.until) {
		n.remove(el)
		return nil
	}
	n.order.MoveToFront(el)
	return e
}

// remove is called with mu held.
func (n *Names) remove(el *list.Element) {
	delete(n.byAddr, el.Value.(*named).addr)
	n.order.Remove(el)
}
