package hostcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/runner"
	"turnstone.dev/turnstone/internal/terminal"
)

type keyCmd struct{}

// Run prints the key.
func (c *keyCmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		s, err := store(a)
		if err != nil {
			return err
		}
		k, err := s.ClientKey(ctx)
		if err == nil {
			terminal.Println(a.Stdout, k.Public.String())
		}
		return err
	})
}

// AllowCmd admits another client to a session of a server.
type AllowCmd struct {
	Session string        `arg:"" help:"Session: its name or ID."`
	Key     string        `arg:"" help:"Key of the other client, as turn host key prints it there."`
	Write   bool          `help:"Also let it run turns and change the session."`
	For     time.Duration `default:"24h" help:"Time to the end of the permission (default: 24h)." placeholder:"24h"`
	End     bool          `help:"End the permission now." xor:"end"`
}

// Help returns the text below the command's summary.
func (c *AllowCmd) Help() string {
	return `Only an owner of the session can do that: the client that made the session, or the
server's operator on the node's own machine.`
}

// Validate is called by kong.
func (c *AllowCmd) Validate() error {
	switch {
	case c.For < time.Second:
		return fmt.Errorf("--for: %s is less than a second", c.For)
	case c.End && c.Write:
		return errors.New("--end and --write cannot be used together")
	}
	return nil
}

// Run admits the key.
func (c *AllowCmd) Run(a *cli.App) error {
	var k channel.PublicKey
	if err := k.UnmarshalText([]byte(c.Key)); err != nil {
		return cli.Usage(turnstone.NewError("session.allow", turnstone.KindInvalid, "", err).
			WithHint("print the key with turn host key, on the other client's machine"))
	}
	if c.End {
		c.For = 0
	}
	return withServer(a, func(ctx context.Context, s *remote.Server) error {
		return runner.Open(s, runner.Options{}).Allow(ctx, c.Session, k, c.Write, c.For)
	})
}
