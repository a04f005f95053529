// Package uicmd is the command turn ui: the page of package ui, on this machine or for the host that
// commands use.
package uicmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/internal/ui"
)

// Cmd is the command.
type Cmd struct {
	Listen string `help:"Listen on this loopback address (default: 127.0.0.1:0)." placeholder:"HOST:PORT" default:"127.0.0.1:0"`
	Open   bool   `help:"Open the page in a browser."`
}

// Help returns the text below the command's summary.
func (c *Cmd) Help() string {
	return `The page shows sessions, their turns with receipts and commands, the files of any turn
and the differences of two. It runs, replays, verifies, forks and merges. The key ? lists
its keys. Port 0 selects a free port.

The printed address contains a token, which is new at each start: who has it can do with
your sessions what you can. The address works on this machine only. With a host
selected, this command speaks to the host as other commands do, and only this machine
decrypts.

Exit status: 0 interrupted by Ctrl-C; 2 the command line is invalid; 3 the page cannot be
served.`
}

// Examples returns command lines for the help.
func (c *Cmd) Examples() []string {
	return []string{"turn ui", "turn ui --open", "turn ui --listen 127.0.0.1:8080"}
}

// Validate is called by kong.
func (c *Cmd) Validate() error {
	addr, err := netip.ParseAddrPort(c.Listen)
	if err == nil && !addr.Addr().IsLoopback() {
		err = errors.New("other machines can reach the address")
	}
	if err != nil {
		return fmt.Errorf("--listen: %q is no loopback address with a port, such as 127.0.0.1:8080: %w",
			c.Listen, err)
	}
	return nil
}

// Run serves the page until it is interrupted.
func (c *Cmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		l, err := net.Listen("tcp", c.Listen)
		if err != nil {
			return cli.Exit(cli.ExitAborted, turnstone.NewError("ui", turnstone.KindUnavailable, c.Listen,
				err).WithHint("choose another port with --listen 127.0.0.1:PORT; 0 selects a free port"))
		}
		name, err := place(a)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		guard := loopback.Guard{Token: loopback.NewToken()}
		s := ui.New(ui.Options{Guard: guard, Log: slog.Default(), Place: ui.Place{Sessions: x,
			Evidence: x, Files: x, Runner: x, Changer: x, Name: name}})
		address := fmt.Sprintf("http://%s/%s/", l.Addr(), guard.Token)
		a.Say("serving the page; Ctrl-C stops it, and the turns that it runs")
		terminal.Println(a.Stderr, address)
		if c.Open {
			remove, err := browse(address)
			if err != nil {
				a.Say("no browser was opened: " + err.Error())
			}
			defer remove()
		}
		err = s.Serve(ctx, l)
		var sig cli.Interruption
		if errors.As(context.Cause(ctx), &sig) && err == nil {
			return nil
		}
		return err
	})
}

// place returns the name of the host that commands use; empty: this machine.
func place(a *cli.App) (string, error) {
	host, err := a.CurrentHost()
	if err != nil || host == hosts.Local || host == hosts.Auto {
		return "", err
	}
	return "host " + host, nil
}
