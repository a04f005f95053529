package cli

import (
	"cmp"
	"context"

	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// Server returns the server that commands use, or nil for this machine alone: TURN_HOST, or else the
// host of turn host use, or else host of config.toml. The caller closes the server.
func (a *App) Server(ctx context.Context) (*remote.Server, error) {
	name, err := a.CurrentHost()
	if err != nil {
		return nil, err
	}
	return a.hosts().Server(ctx, name)
}

// CurrentHost returns the name or the address of the host that commands use, hosts.Auto or
// hosts.Local.
func (a *App) CurrentHost() (string, error) {
	if named := a.Env.Host; named != "" {
		return named, nil
	}
	dir, err := a.Locate()
	if err != nil {
		return "", err
	}
	if named, err := a.hosts().Selected(); err != nil || named != "" {
		return named, err
	}
	return cmp.Or(configuredHost(dir), hosts.Local), nil
}

// NoServer reports whether commands use no server, because none is selected.
func (a *App) NoServer() bool {
	host, err := a.CurrentHost()
	return err == nil && host == hosts.Local
}

// OperatorServer returns the server of this machine over the operator's socket. The error is of kind
// Unavailable if none runs.
func (a *App) OperatorServer(ctx context.Context) (*remote.Server, error) {
	return a.hosts().Operator(ctx)
}

// Unpinned returns the server at an address, to ask for its nodes: see hosts.Client.
func (a *App) Unpinned(ctx context.Context, address remote.Address, h *hosts.Host) (
	s *remote.Server, own bool, err error) {
	return a.hosts().Unpinned(ctx, address, h)
}

func (a *App) hosts() hosts.Client { return hosts.Client{Dir: a.Env.Dir, Token: a.Env.Token} }
