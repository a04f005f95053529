package network

import (
	"net/netip"
	"turnstone.dev/turnstone"
)

// A Greeting is the parsed first bytes of a connection.
type Greeting struct {
	Protocol GreetingProtocol
	Name     string // the requested host; lower case; "": not named, or an address
}

// A GreetingProtocol is the protocol at the beginning of a connection.
type GreetingProtocol int

const (
	GreetingSilent  GreetingProtocol = iota // no byte in time, or only white space
	GreetingPartial                         // TLS or HTTP, incomplete in time or malformed
	GreetingUnknown                         // neither TLS nor HTTP
	GreetingTLS
	GreetingHTTP
)

// A Check is the condition for the guest's first bytes on a connection, and for each HTTP request
// on it.
type Check struct {
	j     *Judge
	to    netip.AddrPort
	named bool // only names open it: the guest must name one of them
	free  bool // a protocol that names no host is accepted: a rule has the name and this port
	First bool // the guest's first bytes are checked before it receives any byte
}

// Check returns the check of a connection to an address with these names.
func (j *Judge) Check(to netip.AddrPort, names []string) Check {
	c := Check{j: j, to: to}
	if j.decide("", to.Addr(), to.Port()).Allowed {
		return c
	}
	c.named = true
	for _, name := range names {
		c.free = c.free || !WebPort(to.Port()) && j.pinned(name, to) &&
			j.decide(name, to.Addr(), to.Port()).Allowed
	}
	c.First = !c.free
	return c
}

// Strict reports whether HTTP is forwarded request by request: the policy has rules with names for
// the connection.
func (c Check) Strict() bool { return c.named || c.j.denies }

// Request returns why a request for a host, in the form of HTTP's Host, is refused, or "".
func (c Check) Request(host string, known *Names) string {
	return c.Greeting(Greeting{Protocol: GreetingHTTP, Name: CanonicalName(HostOnly(host))}, known)
}

// WebPort reports whether port is a port of the web, where a client that names no host hides it.
func WebPort(port uint16) bool { return port == 80 || port == 443 }

// Greeting returns why a connection that begins with g is refused, or "".
func (c Check) Greeting(g Greeting, known *Names) string {
	if g.Name != "" {
		v := c.j.decide(g.Name, c.to.Addr(), c.to.Port())
		switch {
		case !v.Allowed:
			return v.Reason
		case c.named && !known.has(c.to.Addr(), g.Name):
			return "the address was not answered for this name"
		}
		return ""
	}
	if !c.named {
		if c.j.denies && g.Protocol == GreetingPartial {
			return "the host's name cannot be read"
		}
		return ""
	}
	switch g.Protocol {
	case GreetingTLS:
		return "TLS without a server name"
	case GreetingHTTP:
		return "HTTP without a host name"
	case GreetingPartial:
		return "the host's name cannot be read"
	}
	if c.free {
		return ""
	}
	if g.Protocol == GreetingSilent {
		return "the client did not say which host it wants"
	}
	return "the protocol does not say which host it wants"
}

// Connect decides whether a connection may be opened, before any byte was sent on it. It returns
// the refusal if not.
func (j *Judge) Connect(protocol string, to netip.AddrPort, names []string) (turnstone.Refusal,
	bool) {
	var host string
	if len(names) > 0 {
		host = names[0]
	}
	r := turnstone.Refusal{Protocol: protocol, Host: host, Address: to}
	v := j.decide("", to.Addr(), to.Port())
	if v.Allowed && !j.denies {
		return r, true
	}
	allowed := v.Allowed && len(names) == 0
	for _, name := range names {
		byName := j.decide(name, to.Addr(), to.Port())
		// Datagrams name no host, and QUIC hides it: a name opens datagrams only together with a
		// port, and never the port of QUIC.
		if byName.Allowed && !v.Allowed && protocol == "udp" &&
			(WebPort(to.Port()) || !j.pinned(name, to)) {
			byName = Verdict{Reason: "a name opens UDP only with a port in the rule, and not 443"}
		}
		if byName.Allowed {
			allowed = true
			continue
		}
		v = byName
	}
	if allowed {
		return r, true
	}
	r.Reason = v.Reason
	return r, false
}
