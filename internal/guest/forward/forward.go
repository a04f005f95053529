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

// Dial connects to a port at the address of the sandbox's network card, as the host does for
// local callers: a process that listens at the loopback address alone is not reached.
func Dial(ctx context.Context, port int) (*net.TCPConn, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, "sandbox", err)
	}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLoopback() || n.IP.To4() == nil {
			continue
		}
		to := net.JoinHostPort(n.IP.String(), strconv.Itoa(port))
		conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp4", to)
		if err != nil {
			return nil, turnstone.NewError(op, turnstone.KindUnavailable, "port "+to, err)
		}
		return conn.(*net.TCPConn), nil
	}
	return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox", "it has no network")
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
