package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/network/sniff"
)

// carry detects the protocol of a connection and serves it.
func (c *connection) carry(ctx context.Context, guest, upstream *eagerConn) {
	word := make(chan sniff.Protocol, 1)
	go func() { word <- c.firstWord(guest) }()
	var said sniff.Protocol
	select {
	case <-ctx.Done():
		return
	case said = <-word:
	case <-upstream.first:
		select {
		case said = <-word:
		default: // the other side begins: neither HTTP nor TLS
			if c.onlyHTTP() {
				c.refuseOther(guest, upstream, len(upstream.peek()) > 0)
				return
			}
			c.copy(guest, upstream, recording.ProtocolTCP, word)
			return
		}
	}
	switch {
	case said == sniff.HTTP:
		c.budgeted(ctx, guest, func() { c.forwardHTTP(ctx, guest, upstream) })
	case said == sniff.TLS && c.scheme == "http" && c.opens():
		c.budgeted(ctx, guest, func() { c.openTLS(ctx, guest, upstream) })
	case c.onlyHTTP():
		c.refuseOther(guest, upstream, len(guest.peek()) > 0)
	case said == sniff.TLS && c.scheme == "http" &&
		bytes.HasPrefix(guest.peek(), []byte{sniff.RecordHandshake, 3}):
		c.copy(guest, upstream, recording.ProtocolTLS, nil)
	default:
		word <- said
		c.copy(guest, upstream, recording.ProtocolTCP, word)
	}
}

// onlyHTTP reports whether only HTTP passes: in intercepted TLS, on a port of the web, if each
// request is checked.
func (c *connection) onlyHTTP() bool {
	return c.scheme == "https" && c.strict() && network.WebPort(c.to.Port())
}

// refuseOther ends a connection that must be HTTP and is not. spoke means that the guest or the
// host has sent a byte.
func (c *connection) refuseOther(guest, upstream *eagerConn, spoke bool) {
	if spoke {
		c.refused("no HTTP inside of TLS, on a port of the web")
	}
	guest.Reset()
	upstream.Reset()
}

// firstWord returns the guest's protocol. If requests are checked, it waits until the protocol is
// certain, however long that takes. Otherwise only a plain request counts as HTTP, and input that
// is undecided for a while counts as another protocol.
func (c *connection) firstWord(guest *eagerConn) sniff.Protocol {
	<-guest.first
	strict := c.strict()
	if !strict && sniff.Classify(guest.peek()) == sniff.Partial {
		_ = guest.SetReadDeadline(time.Now().Add(partialTime))
		defer func() { _ = guest.SetReadDeadline(time.Time{}) }()
	}
	said := sniff.Classify(guest.peek())
	for said == sniff.Partial && guest.err == nil && len(guest.peek()) < sniff.MaxGreeting {
		guest.more(len(guest.peek()) + 1)
		said = sniff.Classify(guest.peek())
	}
	if strict {
		if guest.err != nil {
			said = sniff.ClassifyAtEnd(guest.peek())
		}
		return said
	}
	if t, ok := guest.err.(net.Error); ok && t.Timeout() {
		guest.err = nil
	}
	if said == sniff.TLS || said == sniff.HTTP && sniff.IsPlainRequest(guest.peek()) {
		return said
	}
	return sniff.Other
}

// copy carries bytes both ways until both sides have ended. word delivers the guest's protocol;
// nil: any protocol is allowed.
func (c *connection) copy(guest, upstream *eagerConn, protocol string, word <-chan sniff.Protocol) {
	rec := c.p.opts.Recorder.Stream(recording.Stream{Host: c.name, Address: c.to,
		Protocol: protocol, Opened: c.scheme == "https"})
	defer rec.Close()
	pump := func(dst net.Conn, src io.Reader, sent bool) {
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if n > 0 {
				rec.Note(sent, buf[:n]) // before it can be answered
				if _, werr := dst.Write(buf[:n]); werr != nil {
					err = werr
				}
			}
			if err == nil {
				continue
			}
			if errors.Is(err, io.EOF) {
				_ = network.CloseWrite(dst)
			} else {
				guest.Reset()
				upstream.Reset()
			}
			return
		}
	}
	var both sync.WaitGroup
	both.Go(func() {
		pump(upstream, &watched{guest: guest, c: c, word: word, settled: word == nil,
			scanned: word != nil && c.strict()}, true)
	})
	both.Go(func() { pump(guest, upstream, false) })
	both.Wait()
}

// A watched reader reads the guest's bytes to a host that accepts any protocol except HTTP, whose
// requests must be checked. It holds back bytes that may become a request, and ends the connection
// at a request after other bytes.
type watched struct {
	guest   *eagerConn
	c       *connection
	word    <-chan sniff.Protocol // protocol of the first bytes; nil: it is known
	settled bool                  // the guest's protocol is not HTTP
	pending []byte                // may become a request
	ready   []byte
	err     error // after ready
	scanned bool
	scan    sniff.RequestScan
}

// errUnseen ends a connection whose requests would not be checked.
var errUnseen = errors.New("HTTP that could not be checked")

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.read(p)
	if w.scanned && w.scan.Saw(p[:n]) {
		w.c.refused("HTTP after another protocol")
		return 0, errUnseen
	}
	return n, err
}

func (w *watched) read(p []byte) (int, error) {
	if w.word != nil {
		said := <-w.word
		w.word, w.settled = nil, !w.c.strict() || said == sniff.Other || said == sniff.TLS
	}
	for !w.settled && len(w.ready) == 0 && w.err == nil {
		w.look()
	}
	if len(w.ready) > 0 {
		n := copy(p, w.ready)
		w.ready = w.ready[n:]
		return n, nil
	}
	if w.err != nil {
		return 0, w.err
	}
	return w.guest.Read(p)
}

// look reads more bytes. White space passes at once, because some protocols begin with it.
func (w *watched) look() {
	buf := make([]byte, firstBytes)
	n, err := w.guest.Read(buf)
	w.pending = append(w.pending, buf[:n]...)
	said := sniff.Classify(w.pending)
	if err != nil {
		said = sniff.ClassifyAtEnd(w.pending)
	}
	switch said {
	case sniff.Partial:
		if err == nil && len(w.pending) < sniff.MaxGreeting {
			return
		}
		fallthrough
	case sniff.HTTP:
		w.err = errUnseen
		w.c.refused("HTTP after white space, or after the other side's first bytes")
		return
	case sniff.Other, sniff.TLS:
		w.settled = true
	}
	w.ready, w.pending, w.err = w.pending, nil, err
}
