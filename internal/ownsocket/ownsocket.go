// Package ownsocket has Unix sockets in a folder that only one user may use: this process's.
package ownsocket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"
)

// maxSocketPath is the size of a sockaddr_un's path without the final zero (unix(7)).
const maxSocketPath = 107

// socketPath returns a sufficiently short path for the socket in dir, and a file that must stay
// open during its use: a long path goes through a descriptor.
func socketPath(dir, name string) (string, func(), error) {
	path := filepath.Join(dir, name)
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), func() { _ = d.Close() }, nil
}

// Listen creates the socket name in dir. Only this process's user can connect: the folder and
// the socket are private.
func Listen(dir, name string) (*net.UnixListener, error) {
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	path, release, err := socketPath(dir, name)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // its path may refer to a descriptor that is closed by then
	if err := os.Chmod(filepath.Join(dir, name), 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Dial connects to the socket name in dir.
func Dial(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	path, release, err := socketPath(dir, name)
	if err != nil {
		return nil, err
	}
	defer release()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Accept calls serve with each connection to l of this process's user, until l is closed. what
// names a connection in the log.
func Accept(l *net.UnixListener, log *slog.Logger, what string, serve func(*net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // probably out of descriptors: others will be closed
			log.Warn(what+" could not be accepted", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err := checkPeer(conn); err != nil {
			log.Warn(what+" was rejected", "err", err)
			_ = conn.Close()
			continue
		}
		serve(conn)
	}
}
