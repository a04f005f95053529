package netstack

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/sniff"
)

var errGreetingTooLong = errors.New("greeting too long")

// peek reads and parses the guest's first bytes, which the next Read reads again. It waits for the
// first byte (0: forever), and then for the rest. Without strict it does not wait for unusual text
// to become HTTP.
func (c *guestConn) peek(first, rest time.Duration, strict bool) network.Greeting {
	return c.look(&recorder{from: c.readNew, seen: c.head, easy: !strict}, first, rest)
}

// peekLate is peek for a guest that may take its time: white space alone is an answer, too.
func (c *guestConn) peekLate(rest time.Duration, strict bool) network.Greeting {
	return c.look(&recorder{from: c.readNew, seen: c.head, blank: true, easy: !strict}, 0, rest)
}

func (c *guestConn) look(r *recorder, first, rest time.Duration) network.Greeting {
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

// A recorder keeps the bytes that are read through it.
type recorder struct {
	from func([]byte) (int, error)
	seen []byte
	off  int
	err  error
	// blank means that white space is reported before other bytes have come.
	blank bool
	// easy means that only a plain request is waited for.
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
	if len(r.seen) >= sniff.MaxGreeting {
		return 0, errGreetingTooLong
	}
	n, err := r.from(b[:min(len(b), sniff.MaxGreeting-len(r.seen))])
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

func parseGreeting(r *recorder) network.Greeting {
	r.more(1)
	for {
		switch sniff.Classify(r.seen) {
		case sniff.TLS:
			return parseTLS(r)
		case sniff.HTTP:
			return parseHTTP(r)
		case sniff.Other:
			return network.Greeting{Protocol: network.GreetingUnknown}
		case sniff.Partial:
			if r.easy && !sniff.MaybePlain(r.seen) {
				return network.Greeting{Protocol: network.GreetingUnknown}
			}
		case sniff.Blank:
			if r.blank && len(r.seen) > 0 {
				return network.Greeting{Protocol: network.GreetingSilent}
			}
		}
		if !r.more(len(r.seen) + 1) {
			break
		}
	}
	said := sniff.Classify(r.seen)
	if errors.Is(r.err, io.EOF) {
		said = sniff.ClassifyAtEnd(r.seen)
	}
	switch said {
	case sniff.Blank:
		return network.Greeting{Protocol: network.GreetingSilent}
	case sniff.Other:
		return network.Greeting{Protocol: network.GreetingUnknown}
	}
	return network.Greeting{Protocol: network.GreetingPartial}
}

// parseTLS returns the server name of a ClientHello. With Encrypted Client Hello it is the outer
// name.
func parseTLS(r *recorder) network.Greeting {
	g := network.Greeting{Protocol: network.GreetingPartial}
	stop := errors.New("seen")
	_ = tls.Server(readOnly{r},
		&tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			g = network.Greeting{Protocol: network.GreetingTLS,
				Name: network.CanonicalName(hello.ServerName)}
			return nil, stop
		}}).Handshake()
	return g
}

// parseHTTP returns the host in the header of an HTTP/1 request.
func parseHTTP(r *recorder) network.Greeting {
	req, err := http.ReadRequest(bufio.NewReader(r))
	if err != nil {
		return network.Greeting{Protocol: network.GreetingPartial}
	}
	return network.Greeting{Protocol: network.GreetingHTTP,
		Name: network.CanonicalName(network.HostOnly(req.Host))}
}

// readOnly turns a reader into a connection for crypto/tls, and discards its alert.
type readOnly struct{ io.Reader }

func (readOnly) Write(b []byte) (int, error)      { return len(b), nil }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return nil }
func (readOnly) RemoteAddr() net.Addr             { return nil }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }
