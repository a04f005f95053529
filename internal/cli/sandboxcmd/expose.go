package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type sandboxExposeCmd struct {
	Sandbox string `arg:"" help:"ID, ID prefix or name."`
	Port    port   `arg:"" help:"Port in the sandbox."`
	Listen  string `help:"Listen on this local address (default: 127.0.0.1:0)." placeholder:"ADDRESS:PORT" default:"127.0.0.1:0"`
}

// A port is a TCP port.
type port uint16

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *port) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a port: write a number from 1 to 65535", text)
	}
	*p = port(n)
	return nil
}

// Help returns the text below the command's summary.
func (c *sandboxExposeCmd) Help() string {
	return `Standard output has one line: the address that turn listens on. Port 0 selects a free
port. Connections are forwarded until Ctrl-C, or until the sandbox ends. The server in
the sandbox may listen on all addresses, on the sandbox's address, 10.0.2.15, or on
its loopback, 127.0.0.1 or ::1.

Exit status: 0 after Ctrl-C; 2 there is no such sandbox; 3 the address is not
available, or the sandbox has ended.`
}

// Examples returns command lines for the help.
func (c *sandboxExposeCmd) Examples() []string {
	return []string{
		"turn sandbox expose box 8000",
		"turn sandbox expose box 8000 --listen 127.0.0.1:8080",
	}
}

// Run forwards connections.
func (c *sandboxExposeCmd) Run(a *cli.App) error {
	err := a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		i, err := s.Find(ctx, c.Sandbox)
		if err != nil {
			return err
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
		if err != nil {
			return turnstone.NewError("sandbox.expose", turnstone.KindUnavailable, c.Listen, err).
				WithHint("choose another address with --listen")
		}
		if _, err := terminal.Println(a.Stdout, l.Addr()); err != nil {
			_ = l.Close()
			return err
		}
		tell := func(err error) { terminal.Println(a.Stderr, "turn: "+err.Error()) }
		err = s.Expose(ctx, i.ID, uint16(c.Port), l, tell)
		var sig cli.Interruption
		if errors.As(context.Cause(ctx), &sig) {
			return nil // the usual end
		}
		return err
	})
	return err
}
