package netstack

import (
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/proxy"
)

// Options are what a Stack is made with.
type Options struct {
	Policy      network.Policy
	MTU         int                 // of the guest's card, in bytes; 0: MTU
	Observer    network.Observer    // may be nil
	Interceptor network.Interceptor // may be nil
	Dialer      network.Dialer      // nil: the host's own
	Resolver    network.Resolver    // nil: the host's own
	Budget      *proxy.Budget       // of connections whose requests are looked at; nil: a share of one of its own
}
