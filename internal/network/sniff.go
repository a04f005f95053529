package network

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// maxGreeting bounds the first bytes of a guest that are looked at. A ClientHello with
// post-quantum key shares has some 2 KiB, and a request's header seldom more than 8.
const maxGreeting = 32 << 10

// A greeting is what the first bytes of a connection say.
type greeting struct {
	protocol greetingProtocol
	name     string // of the host that the guest wants; lower case; "" when it does not say, or is an address
}

type greetingProtocol int

const (
	silent  greetingProtocol = iota // nothing came in time, or nothing but white space
	partial                         // TLS or HTTP, and not all of it came in time, or it is broken
	unknown                         // neither TLS nor HTTP
	isTLS
	isHTTP
)

var errGreetingTooLong = errors.New("greeting too long")

// peek reads and parses the guest's first bytes, which are read again by the next Read. It
// waits for the first one (0: for ever), and then for the rest. Without strict it does not
// wait for what is only odd to become HTTP.
func (c *guestConn) peek(first, rest time.Duration, strict bool) greeting {
	return c.look(&recorder{from: c.readNew, seen: c.head, easy: !strict}, first, rest)
}

// peekLate is peek for a guest that may take its time: white space alone is an answer, too.
func (c *guestConn) peekLate(rest time.Duration, strict bool) greeting {
	return c.look(&recorder{from: c.readNew, seen: c.head, blank: true, easy: !strict}, 0, rest)
}

func (c *guestConn) look(r *recorder, first, rest time.Duration) greeting {
	if first > 0 {
		_ = c.SetReadDeadline(time.Now().Add(first))
	}
	if r.more(1) {
		_ = c.SetReadDeadline(time.Now().Add(rest))
	}
	g := parseGreeting(r)
	_ = c.SetReadDeadline(time.Time{})
	c.head = r.seen
	return g
}

// A recorder keeps what is read through it.
type recorder struct {
	from func([]byte) (int, error)
	seen []byte
	off  int
	err  error
	// blank says that white space is to be told of before anything else has come.
	blank bool
	// easy says that only a plain request is waited for.
	easy bool
}

func (r *recorder) Read(b []byte) (int, error) {
	if r.off < len(r.seen) {
		n := copy(b, r.seen[r.off:])
		r.off += n
		return n, nil
	}
	if r.err != nil {
		return 0, r.err
	}
	if len(r.seen) >= maxGreeting {
		return 0, errGreetingTooLong
	}
	n, err := r.from(b[:min(len(b), maxGreeting-len(r.seen))])
	r.seen = append(r.seen, b[:n]...)
	r.off += n
	r.err = err
	return n, err
}

// more reads until at least n bytes were seen, and reports whether they were.
func (r *recorder) more(n int) bool {
	var buf [4096]byte
	r.off = len(r.seen)
	for len(r.seen) < n {
		if _, err := r.Read(buf[:]); err != nil {
			break
		}
	}
	r.off = 0
	return len(r.seen) >= n
}

func parseGreeting(r *recorder) greeting {
	r.more(1)
	for {
		switch speaks(r.seen) {
		case spokenTLS:
			return parseTLS(r)
		case spokenHTTP:
			return parseHTTP(r)
		case spokenOther:
			return greeting{protocol: unknown}
		case spokenPartial:
			if r.easy && !maybePlain(r.seen) {
				return greeting{protocol: unknown}
			}
		case spokenBlank:
			if r.blank && len(r.seen) > 0 {
				return greeting{protocol: silent}
			}
		}
		if !r.more(len(r.seen) + 1) {
			break
		}
	}
	said := speaks(r.seen)
	if errors.Is(r.err, io.EOF) {
		said = speaksAtEnd(r.seen)
	}
	switch said {
	case spokenBlank:
		return greeting{protocol: silent}
	case spokenOther:
		return greeting{protocol: unknown}
	}
	return greeting{protocol: partial}
}

// recordHandshake is the type of the record that a TLS connection begins with (RFC 8446, 5.1).
const recordHandshake = 22

// parseTLS takes the server name from a ClientHello. With Encrypted Client Hello it is the
// outer one.
func parseTLS(r *recorder) greeting {
	g := greeting{protocol: partial}
	stop := errors.New("seen")
	_ = tls.Server(readOnly{r}, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		g = greeting{protocol: isTLS, name: hostName(hello.ServerName)}
		return nil, stop
	}}).Handshake()
	return g
}

// parseHTTP takes the host from the header of an HTTP/1 request.
func parseHTTP(r *recorder) greeting {
	req, err := http.ReadRequest(bufio.NewReader(r))
	if err != nil {
		return greeting{protocol: partial}
	}
	return greeting{protocol: isHTTP, name: hostName(hostOnly(req.Host))}
}

// hostName returns s as policies have it, or "" for what is no name.
func hostName(s string) string {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if checkName(s) != nil || looksLikeAddress(s) {
		return ""
	}
	return s
}

// readOnly makes a connection of a reader for crypto/tls, whose alert goes nowhere.
type readOnly struct{ io.Reader }

func (readOnly) Write(b []byte) (int, error)      { return len(b), nil }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return nil }
func (readOnly) RemoteAddr() net.Addr             { return nil }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }

// A check says what has to hold for the guest's first bytes on a connection, and for each
// request of HTTP on it.
type check struct {
	j     *judge
	to    netip.AddrPort
	named bool // only names open it: the guest has to name one of them
	free  bool // a protocol that names no host will do: a rule has the name and this port
	first bool // nothing is sent to the guest before they are known
}

// check says how a connection to an address with these names is looked at.
func (j *judge) check(to netip.AddrPort, names []string) check {
	c := check{j: j, to: to}
	if j.decide("", to.Addr(), to.Port()).Allowed {
		return c
	}
	c.named = true
	for _, name := range names {
		c.free = c.free || !webPort(to.Port()) && j.pinned(name, to) && j.decide(name, to.Addr(), to.Port()).Allowed
	}
	c.first = !c.free
	return c
}

// strict reports whether what is HTTP is passed on request by request: the policy has rules with
// names for the connection.
func (c check) strict() bool { return c.named || c.j.denies }

// request returns why a request for a host, as HTTP's Host has it, is refused, or "".
func (c check) request(host string, known *names) string {
	return c.greeting(greeting{protocol: isHTTP, name: hostName(hostOnly(host))}, known)
}

// webPort tells the ports on which whoever does not name a host hides it.
func webPort(port uint16) bool { return port == 80 || port == 443 }

// greeting returns why a connection that begins with g is refused, or "".
func (c check) greeting(g greeting, known *names) string {
	if g.name != "" {
		v := c.j.decide(g.name, c.to.Addr(), c.to.Port())
		switch {
		case !v.Allowed:
			return v.Reason
		case c.named && !known.has(c.to.Addr(), g.name):
			return "the address was not answered for this name"
		}
		return ""
	}
	if !c.named {
		if c.j.denies && g.protocol == partial {
			return "the host's name cannot be read"
		}
		return ""
	}
	switch g.protocol {
	case isTLS:
		return "TLS without a server name"
	case isHTTP:
		return "HTTP without a host name"
	case partial:
		return "the host's name cannot be read"
	}
	if c.free {
		return ""
	}
	if g.protocol == silent {
		return "the client did not say which host it wants"
	}
	return "the protocol does not say which host it wants"
}

// connect says whether a connection may be opened, before anything was sent on it.
func (j *judge) connect(protocol string, to netip.AddrPort, names []string) (Refusal, bool) {
	var host string
	if len(names) > 0 {
		host = names[0]
	}
	r := Refusal{Protocol: protocol, Host: host, Address: to}
	v := j.decide("", to.Addr(), to.Port())
	if v.Allowed && !j.denies {
		return r, true
	}
	allowed := v.Allowed && len(names) == 0
	for _, name := range names {
		byName := j.decide(name, to.Addr(), to.Port())
		// Datagrams say nothing of the host, and QUIC hides it: a name opens them only
		// together with a port, and not the port of QUIC.
		if byName.Allowed && !v.Allowed && protocol == "udp" && (webPort(to.Port()) || !j.pinned(name, to)) {
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
