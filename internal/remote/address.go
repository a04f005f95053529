package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
)

// maxAddress bounds an address in bytes.
const maxAddress = 2048

// An Address is where a server is: an https: URL, an http: URL of this machine, or a Unix socket.
type Address struct {
	socket string   // path; empty: base is the address
	base   *url.URL // without a slash at its end
}

// ParseAddress parses https://HOST[:PORT][/PATH], http://LOOPBACK[:PORT][/PATH] or unix:PATH. Plain
// HTTP to another machine is refused, because it would show the token to everyone on the way. The
// error is of kind Invalid, and has no credentials of the text.
func ParseAddress(text string) (Address, error) {
	bad := func(format string, args ...any) (Address, error) {
		return Address{}, turnstone.Errorf("host.address", turnstone.KindInvalid,
			"the server's address", format, args...).
			WithHint("write https://NAME, unix:PATH, or http://127.0.0.1:PORT on this machine")
	}
	if len(text) > maxAddress || strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' && r != ' ' || r == 0x7f
	}) {
		return bad("is too long, or has control characters")
	}
	if path, is := strings.CutPrefix(text, "unix:"); is {
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return bad("has no path of a socket")
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return bad("%w", err)
		}
		return Address{socket: path}, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil: // whose text has the address, and maybe a password
		return bad("is no URL")
	case u.Scheme == "" || u.Opaque != "" && u.Scheme != "https" && u.Scheme != "http": // HOST:PORT
		return bad("has no scheme: https, http or unix")
	case u.Scheme != "https" && u.Scheme != "http":
		return bad("has the scheme %.20q, not https, http or unix", u.Scheme)
	case u.User != nil:
		return bad("has a user or a password")
	case u.Hostname() == "" || u.Opaque != "":
		return bad("has no host")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return bad("has a query or a fragment")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return bad("%.100s would carry the token unencrypted to another machine", u.Host)
	}
	base := &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host),
		Path: strings.TrimRight(u.Path, "/")}
	return Address{base: base}, nil
}

// loopback reports whether host is this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// String returns the address as ParseAddress reads it.
func (a Address) String() string {
	switch {
	case a.socket != "":
		return "unix:" + a.socket
	case a.base != nil:
		return a.base.String()
	}
	return ""
}

// Socket returns the path of the Unix socket, or "".
func (a Address) Socket() string { return a.socket }

// Loopback reports whether the server is on this machine.
func (a Address) Loopback() bool { return a.socket != "" || loopback(a.base.Hostname()) }

// control returns the base URL of control calls.
func (a Address) control() string {
	if a.socket != "" {
		return "http://server"
	}
	return a.base.String()
}

// channel returns the address of the WebSocket at a path that the server answered.
func (a Address) channel(path string) (string, error) {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" || !strings.HasPrefix(path, "/turnstone/v1/") ||
		strings.Contains(u.Path, "..") {
		return "", turnstone.Errorf("host.channel", turnstone.KindIntegrity, "the server",
			"answers %.100q, which is no path of a channel", path)
	}
	to := url.URL{Scheme: "ws", Host: "server", Path: u.Path}
	if a.base != nil {
		to.Host, to.Path = a.base.Host, a.base.Path+u.Path
		if a.base.Scheme == "https" {
			to.Scheme = "wss"
		}
	}
	return to.String(), nil
}

// Own reports that a server listens at the socket, and that it is a process of this user or of root.
// The error is of kind Unavailable if none listens, and Invalid if it belongs to somebody else.
func (a Address) Own(ctx context.Context) error {
	c, err := a.dial(ctx, "", "")
	if err != nil {
		return turnstone.NewError("host.connect", turnstone.KindUnavailable, a.String(), cause(err)).
			WithHint("start the server with turn serve")
	}
	defer func() { _ = c.Close() }()
	return a.checkOwn(c)
}

// checkOwn reports a connection whose other end is of another user.
func (a Address) checkOwn(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return turnstone.Errorf("host.connect", turnstone.KindInvalid, a.String(), "is no socket")
	}
	uid, err := peer(u)
	if err == nil && uid != os.Geteuid() && uid != 0 {
		err = fmt.Errorf("belongs to user %d", uid)
	}
	if err != nil {
		return turnstone.NewError("host.connect", turnstone.KindInvalid, a.String(), err).
			WithHint("compare its node's key with its operator, and add it with turn host add")
	}
	return nil
}

// dialOwn is dial for a server of this user.
func (a Address) dialOwn(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := a.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := a.checkOwn(c); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// dial connects to the server. Plain HTTP reaches this machine alone, whatever a name resolves to.
func (a Address) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTime}
	if a.socket != "" {
		return d.DialContext(ctx, "unix", a.socket)
	}
	if a.base.Scheme == "http" {
		d.ControlContext = func(_ context.Context, _, addr string, _ syscall.RawConn) error {
			host, _, err := net.SplitHostPort(addr)
			if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
				return errors.Join(err, fmt.Errorf("%s is not this machine", addr))
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, addr)
}
