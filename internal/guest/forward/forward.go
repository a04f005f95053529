// Package forward connects to ports of the sandbox, for clients who reach the sandbox through its
// agent alone.
package forward

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

const op turnstone.Op = "Sandbox.connect"

// dialTime bounds the time in which a port answers.
const dialTime = 10 * time.Second

// Dial connects to a port of the sandbox at the address of its network card, as the host does for
// local callers. With loopback it tries the loopback's addresses then, where many servers listen unless
// they are told otherwise. The error is that of the first address.
func Dial(ctx context.Context, port int, loopback bool) (*net.TCPConn, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, "sandbox", err)
	}
	ips := cards(all)
	if loopback {
		ips = append(ips, net.IPv4(127, 0, 0, 1), net.IPv6loopback)
	}
	if len(ips) == 0 {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox", "it has no network")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for _, ip := range ips {
		to := net.JoinHostPort(ip.String(), strconv.Itoa(port))
		conn, fault := new(net.Dialer).DialContext(ctx, "tcp", to)
		if fault == nil {
			return conn.(*net.TCPConn), nil
		}
		if err == nil {
			err = turnstone.NewError(op, turnstone.KindUnavailable, "port "+to, fault)
		}
	}
	return nil, err
}

// cards returns the addresses of network cards.
func cards(all []net.Addr) (ips []net.IP) {
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			ips = append(ips, n.IP)
		}
	}
	return ips
}

// An Out carries bytes to a client.
type Out interface {
	io.WriteCloser
	Abort(why error)
}

// Copy copies in both directions until both have ended, or one has failed.
func Copy(conn *net.TCPConn, in io.ReadCloser, out Out) {
	var both sync.WaitGroup
	both.Go(func() {
		_, err := io.Copy(conn, in)
		if err == nil {
			err = conn.CloseWrite()
		}
		if err != nil {
			_ = conn.Close() // ends the other direction
		}
	})
	both.Go(func() {
		_, err := io.Copy(struct{ io.Writer }{out}, conn)
		if err != nil {
			out.Abort(err)
			_ = in.Close()
			return
		}
		if out.Close() != nil {
			_ = in.Close()
		}
	})
	both.Wait()
	_ = conn.Close()
	_ = in.Close()
}
