package netstack

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// hostAddresses caches the addresses of the host's own interfaces. It asks the kernel again if its
// answer is older than hostAddressesAge.
type hostAddresses struct {
	ask func() ([]net.Addr, error)

	mu    sync.Mutex
	at    time.Time
	addrs []netip.Addr
}

const hostAddressesAge = 5 * time.Second

// has reports whether a is an address of the host. If the kernel does not answer, the last answer
// counts.
func (h *hostAddresses) has(a netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.at.IsZero() || now.Sub(h.at) > hostAddressesAge {
		if list, err := h.ask(); err == nil {
			h.addrs = h.addrs[:0]
			for _, item := range list {
				if p, err := netip.ParsePrefix(item.String()); err == nil {
					h.addrs = append(h.addrs, p.Addr().Unmap())
				}
			}
		}
		h.at = now
	}
	return slices.Contains(h.addrs, a)
}
