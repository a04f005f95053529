// Package fixedport listens at ports that are kept when their server restarts.
//
// Linux gives ports of its ephemeral range (net.ipv4.ip_local_port_range, 32768 to 60999 unless it was
// changed) to every connection and to every listener that wants any port. A server that has left such a
// port for a moment may find it taken. The ports of this package are below that range.
package fixedport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// The ports that are chosen: First up to, not including, End.
const (
	First = 20_000
	End   = 30_000
)

// attempts bounds the search. If half of the ports are in use, 40 attempts fail once in 10^12.
const attempts = 40

// Listen listens with TCP at one of the ports of host, chosen at random. Its errors are those of
// net.ListenConfig.
func Listen(ctx context.Context, host string) (net.Listener, error) {
	var last error
	for range attempts {
		port := First + rand.IntN(End-First)
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		last = err
	}
	return nil, fmt.Errorf("no port from %d to %d is free: %w", First, End-1, last)
}

// Free returns the address of a port of host at which nobody listens now. For programs that are told
// their address, as servers of tests are.
func Free(ctx context.Context, host string) (string, error) {
	l, err := Listen(ctx, host)
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
