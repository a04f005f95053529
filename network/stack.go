package network

import (
	"context"
	"io"
	"net"

	"turnstone.dev/turnstone"
)

// A Stack is one sandbox's network. Its methods are safe for concurrent use.
type Stack struct {
	opts Options
}

// Totals are counters of a Stack since it was made. They only grow.
type Totals struct {
	Connections int64 // TCP connections and UDP flows that were allowed and opened
	Sent        int64 // bytes that the guest sent on them
	Received    int64 // bytes that the guest got from them
	Lookups     int64 // names that were looked up
	Refused     int64 // connections, lookups and packets that the policy or a limit ended
	Dropped     int64 // frames that no honest guest sends, or that found no room
	Untold      int64 // refusals that the Observer was not told of, because there were too many at once
}

// New makes the network of one sandbox. Nothing runs on it before Serve. The caller
// must Close it. An error is of kind Invalid and names the rule that is wrong.
func New(opts Options) (*Stack, error) {
	if err := opts.Policy.Validate(); err != nil {
		return nil, err
	}
	return &Stack{opts: opts}, nil
}

// Serve carries frames until either side ends, ctx ends or the Stack is closed, and
// closes frames. It returns nil when the guest's side ended in between two frames, and
// ctx's error after ctx. Input that is not framed as it should be ends it with an error
// of kind Invalid. It may be called again after it returned, for a machine that goes on:
// connections are kept; but not while another call runs.
func (s *Stack) Serve(ctx context.Context, frames io.ReadWriteCloser) error {
	return &turnstone.Error{Op: "network.serve", Kind: turnstone.Unavailable}
}

// DialGuest opens a connection to a TCP port of the guest. The guest sees it come from
// the gateway. The connection has CloseWrite.
func (s *Stack) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	return nil, &turnstone.Error{Op: "network.dial", Kind: turnstone.Unavailable}
}

// Totals tells what went through the stack so far, also while it is served. Bytes of
// connections that are still open count.
func (s *Stack) Totals() Totals { return Totals{} }

// Close ends every connection and frees all that the Stack holds. It may be called more
// than once; when it returns, no goroutine of the Stack and no call of Serve is left.
func (s *Stack) Close() error { return nil }
