package network

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// carry finds out what is spoken on a connection and serves it.
func (c *connection) carry(ctx context.Context, guest, upstream *eagerConn) {
	word := make(chan spoken, 1)
	go func() { word <- c.firstWord(guest) }()
	var said spoken
	select {
	case <-ctx.Done():
		return
	case said = <-word:
	case <-upstream.first:
		select {
		case said = <-word:
		default: // the other side begins: no HTTP, and no TLS
			if c.onlyHTTP() {
				c.refuseOther(guest, upstream, len(upstream.peek()) > 0)
				return
			}
			c.copy(guest, upstream, protocolTCP, word)
			return
		}
	}
	switch {
	case said == spokenHTTP:
		c.budgeted(ctx, guest, func() { c.forwardHTTP(ctx, guest, upstream) })
	case said == spokenTLS && c.scheme == "http" && c.opens():
		c.budgeted(ctx, guest, func() { c.openTLS(ctx, guest, upstream) })
	case c.onlyHTTP():
		c.refuseOther(guest, upstream, len(guest.peek()) > 0)
	case said == spokenTLS && c.scheme == "http" && bytes.HasPrefix(guest.peek(), []byte{recordHandshake, 3}):
		c.copy(guest, upstream, protocolTLS, nil)
	default:
		word <- said
		c.copy(guest, upstream, protocolTCP, word)
	}
}

// onlyHTTP reports whether nothing but HTTP goes through: in opened TLS, on a port of the web,
// where each request is looked at.
func (c *connection) onlyHTTP() bool {
	return c.scheme == "https" && c.strict() && webPort(c.to.Port())
}

// refuseOther ends a connection on which HTTP is not spoken, and has to be.
// spoke says that something was said.
func (c *connection) refuseOther(guest, upstream *eagerConn, spoke bool) {
	if spoke {
		c.refused("no HTTP inside of TLS, on a port of the web")
	}
	guest.Reset()
	upstream.Reset()
}

// firstWord tells what the guest speaks. Where requests are looked at it waits until that is
// sure, however long it takes. Else it takes only a plain request for HTTP, and what is not
// sure after a while for something else.
func (c *connection) firstWord(guest *eagerConn) spoken {
	<-guest.first
	strict := c.strict()
	if !strict && speaks(guest.peek()) == spokenPartial {
		_ = guest.SetReadDeadline(time.Now().Add(partialTime))
		defer func() { _ = guest.SetReadDeadline(time.Time{}) }()
	}
	said := speaks(guest.peek())
	for said == spokenPartial && guest.err == nil && len(guest.peek()) < maxGreeting {
		guest.more(len(guest.peek()) + 1)
		said = speaks(guest.peek())
	}
	if strict {
		if guest.err != nil {
			said = speaksAtEnd(guest.peek())
		}
		return said
	}
	if t, ok := guest.err.(net.Error); ok && t.Timeout() {
		guest.err = nil
	}
	if said == spokenTLS || said == spokenHTTP && isPlainRequest(guest.peek()) {
		return said
	}
	return spokenOther
}

// copy carries bytes both ways until both sides have ended. word is what the guest speaks; nil:
// it may speak anything.
func (c *connection) copy(guest, upstream *eagerConn, protocol string, word <-chan spoken) {
	rec := c.p.opts.Recorder.stream(RecordedStream{Host: c.name, Address: c.to, Protocol: protocol, Opened: c.scheme == "https"})
	defer rec.close()
	pump := func(dst net.Conn, src io.Reader, sent bool) {
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if n > 0 {
				rec.note(sent, buf[:n]) // before it can be answered
				if _, werr := dst.Write(buf[:n]); werr != nil {
					err = werr
				}
			}
			if err == nil {
				continue
			}
			if errors.Is(err, io.EOF) {
				_ = closeWrite(dst)
			} else {
				guest.Reset()
				upstream.Reset()
			}
			return
		}
	}
	var both sync.WaitGroup
	both.Go(func() {
		pump(upstream, &watched{guest: guest, c: c, word: word, settled: word == nil, scanned: word != nil && c.strict()}, true)
	})
	both.Go(func() { pump(guest, upstream, false) })
	both.Wait()
}

// A watched reader reads what a guest says to a host that it may say anything to but HTTP,
// where that has to be looked at. It holds back what may become a request, and ends the connection
// at one behind something else.
type watched struct {
	guest   *eagerConn
	c       *connection
	word    <-chan spoken // of what comes first; nil: it is known
	settled bool          // the guest speaks no HTTP
	pending []byte        // may become a request
	ready   []byte
	err     error // after ready
	scanned bool
	scan    requestScan
}

// errUnseen ends a connection on which requests would not be looked at.
var errUnseen = errors.New("HTTP that could not be looked at")

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.read(p)
	if w.scanned && w.scan.saw(p[:n]) {
		w.c.refused("HTTP behind something else")
		return 0, errUnseen
	}
	return n, err
}

func (w *watched) read(p []byte) (int, error) {
	if w.word != nil {
		said := <-w.word
		w.word, w.settled = nil, !w.c.strict() || said == spokenOther || said == spokenTLS
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

// look reads on. White space goes through at once: some protocols begin with it.
func (w *watched) look() {
	buf := make([]byte, firstBytes)
	n, err := w.guest.Read(buf)
	w.pending = append(w.pending, buf[:n]...)
	said := speaks(w.pending)
	if err != nil {
		said = speaksAtEnd(w.pending)
	}
	switch said {
	case spokenPartial:
		if err == nil && len(w.pending) < maxGreeting {
			return
		}
		fallthrough
	case spokenHTTP:
		w.err = errUnseen
		w.c.refused("HTTP behind white space, or after the other side's first words")
		return
	case spokenOther, spokenTLS:
		w.settled = true
	}
	w.ready, w.pending, w.err = w.pending, nil, err
}
