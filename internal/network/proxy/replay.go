package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/network/sniff"
)

// replay serves guest from the recording.
func (c *connection) replay(ctx context.Context, guest *eagerConn) {
	player := c.p.opts.Player
	opened := c.scheme == "https"
	if player.SpeaksFirst(c.name, c.to, opened) {
		c.playStream(guest, opened)
		return
	}
	wait := make(<-chan time.Time)
	if !player.Knows(c.name, c.to) {
		wait = time.After(unknownWait)
	}
	select {
	case <-ctx.Done():
		return
	case <-wait: // a guest that waits for the other side's first bytes
		c.refused(recording.NotRecorded)
		network.Reset(guest.Conn)
		return
	case <-guest.first:
	}
	switch said := c.firstWord(guest); {
	case said == sniff.HTTP:
		c.budgeted(ctx, guest, func() { c.replayHTTP(guest) })
	case said == sniff.TLS && !opened:
		c.budgeted(ctx, guest, func() { c.replayTLS(ctx, guest) })
	case len(guest.peek()) == 0 && guest.err != nil:
		return // the guest sent nothing
	default:
		c.playStream(guest, opened)
	}
}

// replayHTTP answers requests, unless the recording has a failed connection at this place.
func (c *connection) replayHTTP(guest *eagerConn) {
	if c.p.opts.Player.Failed(c.name, c.to) {
		c.playStream(guest, false)
		return
	}
	c.serveHTTP(guest, http.HandlerFunc(c.replayRequest))
}

// A tellingDialer opens no connection, and reports that.
type tellingDialer struct{ p *Proxy }

// DialContext implements Dialer.
func (d *tellingDialer) DialContext(_ context.Context, protocol, address string) (net.Conn, error) {
	r := turnstone.Refusal{At: time.Now(), Protocol: protocol, Reason: recording.NotRecorded}
	r.Address, _ = netip.ParseAddrPort(address)
	if o := d.p.opts.Observer; o != nil {
		o.Refused(r)
	}
	return nil, &net.OpError{Op: "dial", Net: protocol,
		Err: errors.New(address + ": " + recording.NotRecorded)}
}

// A tellingResolver answers from the recording, and reports missing names.
type tellingResolver struct{ p *Proxy }

// LookupNetIP implements Resolver.
func (v *tellingResolver) LookupNetIP(_ context.Context, family,
	host string) ([]netip.Addr, error) {
	addrs, known, err := v.p.opts.Player.Lookup(family, host)
	if o := v.p.opts.Observer; !known && o != nil {
		o.Refused(turnstone.Refusal{At: time.Now(), Protocol: "dns", Host: network.BareName(host),
			Reason: recording.NotRecorded})
	}
	return addrs, err
}

// unknownWait is how long a guest may take to name a host that is not in the recording, so that the
// host can be reported.
const unknownWait = 2 * time.Second

// playStream serves the next recorded connection.
func (c *connection) playStream(guest *eagerConn, opened bool) {
	s := c.p.opts.Player.Next(c.name, c.to, opened)
	switch {
	case s == nil:
		c.refused(recording.NotRecorded)
	case s.Failed != "":
		network.Reset(guest.Conn) // as in the recording
	default:
		if err := c.p.opts.Player.Play(guest, s); err != nil {
			c.refused(err.Error())
		}
	}
}

// replayTLS terminates the guest's TLS, because a replay needs its content.
func (c *connection) replayTLS(ctx context.Context, guest *eagerConn) {
	if c.p.opts.CA == nil {
		if s := c.p.opts.Player.Next(c.name, c.to, false); s != nil {
			if s.Failed == "" {
				c.refused("recorded encrypted, which cannot be replayed: " +
					"record with intercept: true")
			}
			return
		}
		c.refused(recording.NotRecorded)
		return
	}
	inner := tls.Server(guest, &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, err := c.serverName(hello)
			if err != nil {
				return nil, err
			}
			protocol := ""
			if kept := withoutHTTP2(hello.SupportedProtos); len(kept) > 0 {
				protocol = kept[0]
			}
			return c.serverConfig(name, protocol)
		}})
	if !c.accept(ctx, inner) {
		return
	}
	defer inner.Close()
	c.scheme = "https"
	c.replay(ctx, newEager(inner))
}

// replayRequest answers a request from the recording.
func (c *connection) replayRequest(w http.ResponseWriter, req *http.Request) {
	sum := newDigester(c.p.opts.Secrets)
	if _, err := io.Copy(sum.w, req.Body); err != nil {
		return // the guest has gone
	}
	url := c.url(req)
	a := c.p.opts.Player.Answer(req.Method, url, sum.digest())
	if a == nil {
		c.refused(fmt.Sprintf("%.20s %.300s: %s", req.Method, url, recording.NotRecorded))
		http.Error(w, "turnstone: "+recording.NotRecorded, http.StatusBadGateway)
		return
	}
	if a.Status == 0 {
		http.Error(w, "turnstone: no answer from "+c.host()+": "+a.Failed, http.StatusBadGateway)
		return
	}
	quiet(w)
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	w.Header().Del("Connection")
	if a.Failed == "" && req.Method != http.MethodHead &&
		w.Header().Get("Content-Length") != fmt.Sprint(a.Size()) {
		w.Header().Del("Content-Length") // masked values have another length
	}
	w.WriteHeader(a.Status)
	if _, err := io.Copy(w, c.p.opts.Player.Body(a)); err != nil {
		return
	}
	if a.Failed != "" { // it was cut off in the recording, too
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
