package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cdp"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/internal/terminal"
)

type sandboxServeCmd struct {
	Listen string `help:"Listen on this address (default: 127.0.0.1:9229)." placeholder:"HOST:PORT" default:"127.0.0.1:9229"`
}

// Help returns the text below the command's summary.
func (c *sandboxServeCmd) Help() string {
	return `Clients of the Chrome DevTools Protocol find the sandboxes at /json/list, the
description of the protocol at /json/protocol, and connect by WebSocket. Port 0 selects
a free port.

The printed address contains a token, which is new at each start: a client with the
token may create, use and remove all sandboxes. Pass the token as the beginning of the
path, as ?token=TOKEN, or as an Authorization header of the form Bearer.`
}

// Validate is called by kong.
func (c *sandboxServeCmd) Validate() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err == nil && host == "" {
		err = errors.New("the host is missing")
	}
	if _, bad := strconv.ParseUint(port, 10, 16); err == nil && bad != nil {
		err = errors.New("the port is not a number from 0 to 65535")
	}
	if err != nil {
		return fmt.Errorf("--listen: %q is not HOST:PORT: %w", c.Listen, err)
	}
	return nil
}

// Run serves until it is interrupted.
func (c *sandboxServeCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		l, err := net.Listen("tcp", c.Listen)
		if err != nil {
			return turnstone.NewError("sandbox.serve", turnstone.KindUnavailable, c.Listen, err).
				WithHint("choose another port with --listen 127.0.0.1:PORT; 0 selects a free port")
		}
		host, _, _ := net.SplitHostPort(c.Listen) // Validate has checked it
		opt := cdp.Options{Backend: s, Token: loopback.NewToken(), Image: executor.DefaultImage,
			Log: slog.Default()}
		if _, err := netip.ParseAddr(host); err != nil {
			opt.Host = host
		}
		if t, ok := l.Addr().(*net.TCPAddr); !ok || !t.IP.IsLoopback() {
			terminal.Println(a.Stderr,
				"turn: other machines can reach this address, and nothing is encrypted; "+
					"an SSH tunnel to a loopback address is safer")
		}
		terminal.Println(a.Stderr,
			"turn: serving sandboxes; Ctrl-C stops the server, not the sandboxes")
		terminal.Printf(a.Stderr, "http://%s/%s/json/list\n", l.Addr(), opt.Token)
		err = cdp.NewServer(opt).Serve(ctx, l)
		var sig cli.Interruption
		if errors.As(context.Cause(ctx), &sig) && err == nil {
			return nil
		}
		return err
	})
}
