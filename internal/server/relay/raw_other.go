//go:build !unix

package relay

import "net"

// newRawReader returns nil: sockets of this platform have no reads that would block.
func newRawReader(net.Conn) reader { return nil }

// early cannot tell.
func early(net.Conn) bool { return false }
