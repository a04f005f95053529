package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Options limit a relay. Zero values of limits mean no limit.
type Options struct {
	// Idle ends a relay after this time without a byte in either direction.
	Idle time.Duration
	// Write ends a relay when a side does not take a buffer within this time.
	Write time.Duration
	// Time and Bytes limit the whole relay; Bytes counts both directions.
	Time  time.Duration
	Bytes int64
	// Total counts what several relays write; nil: nobody does.
	Total *Total
}

// A Total counts bytes while they are relayed. It is safe for concurrent use.
type Total struct{ toNode, toClient atomic.Int64 }

// Sizes returns the bytes so far.
func (t *Total) Sizes() Sizes { return Sizes{t.toNode.Load(), t.toClient.Load()} }

func (t *Total) add(to Side, n int) {
	if t == nil {
		return
	}
	if to == Node {
		t.toNode.Add(int64(n))
	} else {
		t.toClient.Add(int64(n))
	}
}

// Sizes are the bytes that a relay has written.
type Sizes struct {
	ToNode, ToClient int64
}

// Copy copies bytes between the client and the node in both directions until both have ended their
// streams. The end of one stream is passed on, and the other direction continues. If a connection
// cannot end only its writing side, Copy ends both directions. Anything else that ends the relay is
// an error with an EndError as its cause.
//
// Copy clears deadlines that the connections have, closes both, and leaves no goroutine behind.
func Copy(ctx context.Context, client, node net.Conn, o Options) (Sizes, error) {
	r := &relay{options: o, client: client, node: node, began: time.Now()}
	for _, c := range []net.Conn{client, node} {
		_ = c.SetDeadline(time.Time{}) // an error comes from the first use, too
	}
	stop := r.limit(ctx)
	toClient := make(chan struct{})
	go func() {
		defer close(toClient)
		r.direction(Node, node, Client, client, &r.toClient)
	}()
	r.direction(Client, client, Node, node, &r.toNode)
	<-toClient
	stop()
	if r.last != nil {
		r.last.Stop()
	}
	_, _ = client.Close(), node.Close()
	sizes := Sizes{ToNode: r.toNode.Load(), ToClient: r.toClient.Load()}
	if e := r.ended.Load(); e != nil && e.Reason != "" {
		return sizes, e.typed()
	}
	return sizes, nil
}

// A relay is a running Copy.
type relay struct {
	options          Options
	client, node     net.Conn
	toNode, toClient atomic.Int64
	began            time.Time
	moved            atomic.Int64             // when a byte moved last, as time since began
	ended            atomic.Pointer[EndError] // what ended the relay; no Reason: nothing is wrong

	mu       sync.Mutex
	finished bool // no direction runs
	timer    *time.Timer
	left     Side        // the side that ended its stream last
	unsent   *EndError   // a side does not take bytes; whether that is wrong depends on its stream
	last     *time.Timer // ends the wait for the stream of unsent
}

// limit enforces the context and the limits of time until the function that it returns is called,
// which waits for goroutines that are about to act.
func (r *relay) limit(ctx context.Context) (stop func()) {
	var acting sync.WaitGroup
	acting.Add(1)
	release := context.AfterFunc(ctx, func() {
		defer acting.Done()
		r.end(&EndError{Reason: Canceled, Err: context.Cause(ctx)})
	})
	if r.options.Time > 0 || r.options.Idle > 0 {
		acting.Add(1)
		r.mu.Lock()
		r.timer = time.AfterFunc(r.due(), func() {
			if !r.tick() {
				acting.Done()
			}
		})
		r.mu.Unlock()
	}
	return func() {
		r.mu.Lock()
		r.finished = true
		if r.timer != nil && r.timer.Stop() {
			acting.Done()
		}
		r.mu.Unlock()
		if release() {
			acting.Done()
		}
		acting.Wait()
	}
}

// tick runs when the timer fires, and reports whether it is set again.
func (r *relay) tick() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return false
	}
	next := r.due()
	if next > 0 {
		r.timer.Reset(next)
		return true
	}
	reason := Silent
	if t := r.options.Time; t > 0 && time.Since(r.began) >= t {
		reason = TooLong
	}
	r.end(&EndError{Reason: reason})
	return false
}

// due returns the time until the relay reaches the next limit of time.
func (r *relay) due() (d time.Duration) {
	passed := time.Since(r.began)
	if t := r.options.Time; t > 0 {
		d = t - passed
	}
	if t := r.options.Idle; t > 0 {
		idle := time.Duration(r.moved.Load()) + t - passed
		if r.options.Time == 0 || idle < d {
			d = idle
		}
	}
	return d
}

// end ends both directions at once. The first cause counts.
func (r *relay) end(e *EndError) {
	if !r.ended.CompareAndSwap(nil, e) {
		return
	}
	for _, c := range []net.Conn{r.client, r.node} {
		// Below TLS: its Close would send an alert, which waits for a peer that does not read, and
		// would tell the other side of an orderly end.
		if t, ok := c.(interface{ NetConn() net.Conn }); ok {
			c = t.NetConn()
		}
		_ = c.Close()
	}
}

// direction copies from one side to the other until the end of the stream or of the relay.
func (r *relay) direction(from Side, src net.Conn, to Side, dst net.Conn, count *atomic.Int64) {
	in := newReader(src)
	defer in.release()
	for {
		p, err := in.next()
		if len(p) > 0 {
			switch e := r.write(to, dst, p, count); {
			case e != nil && e.Reason == Broken:
				r.untaken(e)
				return
			case e != nil:
				r.end(e)
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			r.closeWrite(to, dst)
			r.leave(from)
			return
		default:
			r.end(&EndError{Side: from, Reason: Broken, Err: cause(err)})
			return
		}
	}
}

// lastTime bounds the wait for the end of the stream of a side that takes no bytes any more.
const lastTime = 5 * time.Second

// untaken notes that a side's connection takes no bytes. If that side has ended its stream, or ends
// it in what it sent before, it has only left without waiting for an answer: the relay ends in order.
// A connection that failed says so to the direction that reads it.
func (r *relay) untaken(e *EndError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == e.Side {
		r.end(&EndError{})
		return
	}
	r.unsent = e
	r.last = time.AfterFunc(lastTime, func() { r.end(e) })
}

// leave notes that a side has ended its stream.
func (r *relay) leave(from Side) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left = from; r.unsent != nil && r.unsent.Side == from {
		r.end(&EndError{})
	}
}

// write writes what one side sent to the other.
func (r *relay) write(to Side, dst net.Conn, p []byte, count *atomic.Int64) *EndError {
	r.moved.Store(int64(time.Since(r.began)))
	if limit := r.options.Bytes; limit > 0 &&
		r.toNode.Load()+r.toClient.Load()+int64(len(p)) > limit {
		return &EndError{Reason: TooMuch}
	}
	if t := r.options.Write; t > 0 {
		_ = dst.SetWriteDeadline(time.Now().Add(t)) // an error comes from Write, too
	}
	n, err := dst.Write(p)
	count.Add(int64(n))
	r.options.Total.add(to, n)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &EndError{Side: to, Reason: Stalled, Err: cause(err)}
	case err != nil:
		return &EndError{Side: to, Reason: Broken, Err: cause(err)}
	}
	r.moved.Store(int64(time.Since(r.began)))
	return nil
}

// closeWrite passes the end of a stream on.
func (r *relay) closeWrite(to Side, dst net.Conn) {
	c, ok := dst.(interface{ CloseWrite() error })
	if !ok {
		r.end(&EndError{})
		return
	}
	if t := r.options.Write; t > 0 {
		_ = dst.SetWriteDeadline(time.Now().Add(t)) // TLS writes an alert
	}
	// A peer that has reset the connection is reported by the other direction, if it still matters.
	if err := c.CloseWrite(); errors.Is(err, os.ErrDeadlineExceeded) {
		r.end(&EndError{Side: to, Reason: Stalled, Err: cause(err)})
	}
}

// cause removes the addresses from an error of a connection: they are in logs already, and say
// nothing to a client.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
