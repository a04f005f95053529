// Package local connects processes of one user on one machine: unix sockets that only their user
// and root can use, connections inside of a process, and the lock of a role.
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// maxPath is the longest path of a unix socket in bytes (unix(7)).
const maxPath = 107

// probeTime bounds the question whether a socket's server is alive.
const probeTime = time.Second

// Listen listens at the unix socket path, whose mode is 0600, and accepts only this user and root:
// a file's mode does not count for a socket that is passed on. A socket that an ended process left
// is replaced. The error is of kind Unavailable. log gets the user IDs that are refused.
func Listen(ctx context.Context, path string, log *slog.Logger) (net.Listener, error) {
	if err := clear(ctx, path); err != nil {
		return nil, turnstone.NewError("server.listen", turnstone.KindUnavailable, path, err).
			WithHint("end the other process, or name another path")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err == nil {
		if err = os.Chmod(path, 0o600); err == nil {
			return Own(l, log), nil
		}
		err = errors.Join(err, l.Close())
	}
	return nil, turnstone.NewError("server.listen", turnstone.KindUnavailable, path, err).
		WithHint("name a path in a folder that only you can write")
}

// ListenHint says what to do if a TCP address cannot be listened at, which is the value of setting.
func ListenHint(err error, setting string) string {
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "use an address of this machine in " + setting
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "use a port above 1023 in " + setting + ", or let systemd listen (turnstone.socket)"
	case errors.Is(err, unix.EADDRINUSE):
		return "end the other process, or change " + setting
	}
	return "change " + setting
}

// clear removes a socket that nobody listens at.
func clear(ctx context.Context, path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("has %d bytes; a socket's path has at most %d", len(path), maxPath)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("exists and is no socket")
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process listens there")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// Own returns l without the connections of other users. Root is not another user.
func Own(l net.Listener, log *slog.Logger) net.Listener { return &own{l, log} }

type own struct {
	net.Listener
	log *slog.Logger
}

func (o *own) Accept() (net.Conn, error) {
	for {
		c, err := o.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if err = CheckOwner(c); err == nil {
			return c, nil
		}
		o.log.Warn("a connection was refused", "socket", o.Addr().String(), "error", err)
		_ = c.Close()
	}
}

// CheckOwner reports that neither this user nor root has the other end of a unix connection.
func CheckOwner(c net.Conn) error {
	uid, err := UID(c)
	if err == nil && uid != os.Geteuid() && uid != 0 {
		err = fmt.Errorf("the other end belongs to the user with ID %d", uid)
	}
	return err
}

// UID returns the effective user ID of the process that opened the other end of a unix connection,
// at that time. It is -1 with an error.
func UID(c net.Conn) (int, error) {
	p, err := peer(c)
	if err != nil {
		return -1, err
	}
	return int(p.Uid), nil
}

// peer returns the IDs of the process that opened the other end of a unix connection, at that time.
func peer(c net.Conn) (*unix.Ucred, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T is no unix connection", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, failed
}
