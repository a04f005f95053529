package netstack

import (
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/proxy"
)

// Options are the parameters of New.
type Options struct {
	Policy      network.Policy
	MTU         int                 // of the guest's card, in bytes; 0: MTU
	Observer    network.Observer    // may be nil
	Interceptor network.Interceptor // may be nil
	Dialer      network.Dialer      // nil: the host's own
	Resolver    network.Resolver    // nil: the host's own
	// of connections whose requests are checked; nil: a share of a new budget
	Budget *proxy.Budget
}
