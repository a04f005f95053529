package kept

import (
	"context"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fixedport"
	"turnstone.dev/turnstone/internal/server/fair"
)

// Ports hands out the addresses of exposed ports. The zero value is ready for use, and safe for concurrent
// use.
type Ports struct{ past fixedport.Past }

// Listen listens at the port of p's address, or if it has none at one that stays free while the node
// restarts, and that no other sandbox had lately. It does so at host, because the setting may have changed
// since the port got its address.
func (x *Ports) Listen(ctx context.Context, host string, id turnstone.SandboxID, p *Port) (net.Listener, error) {
	if p.Address == "" {
		return x.past.Listen(ctx, host, string(id))
	}
	_, port, err := net.SplitHostPort(p.Address)
	if err != nil {
		return nil, err
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, port))
}

// Leave notes that nobody listens at a sandbox's address any longer.
func (x *Ports) Leave(id turnstone.SandboxID, at net.Addr) { x.past.Leave(at.String(), string(id)) }

// Fit reports whether a tenant that has some of the ports that are exposed may have another one: it has at
// most half of those that other tenants leave.
func (x *Ports) Fit(has, exposed, most int) bool { return fair.Fits(has, exposed, most) }
