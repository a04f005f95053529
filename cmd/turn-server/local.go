package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/local"
)

// Times of turn serve --local.
const (
	localUnused = 5 * time.Minute       // to the end of a server that nobody uses
	localWait   = 2 * time.Minute       // for another server to answer or to end
	localPause  = 50 * time.Millisecond // between two looks at the other server
	localAsk    = 5 * time.Second       // for the answer of another server
)

// localEnviron returns the settings of turn serve --local, in place of those that say who connects.
func localEnviron() (all []string) {
	for name, value := range map[string]string{"ROLES": "gateway,controller,node",
		"LISTEN_ADDRESS": "off", "LISTEN_SOCKET": "server.sock", "LISTEN_PROXIES": "",
		"TLS_CERTIFICATE": "", "TLS_KEY": "", "TELEMETRY_LISTEN": "off", "NODE_EXPOSE": "",
		"E2B_LISTEN": "off", "MCP_LISTEN": "off",
		"PEERS_LISTEN": "", "PEERS_ADDRESS": "", "PEERS_CONTROLLER": "", "PEERS_AUTHORITY": "",
		"PEERS_CERTIFICATE": "", "PEERS_KEY": ""} {
		all = append(all, config.Prefix+name+"="+value)
	}
	return all
}

// alone gives the server an end, also where no setting does.
func alone(c *config.Config) {
	if c.Limits.Unused == 0 {
		c.Limits.Unused = localUnused
	}
}

// openLocal is server.Open for a server that other processes of this user may start too: if another
// one answers at the socket, it returns nil. One that begins or ends is waited for.
func openLocal(ctx context.Context, o server.Options) (*server.Server, error) {
	keepServing()
	for until := time.Now().Add(localWait); ; {
		if serves(ctx, o.Config.Listen.Socket) {
			o.Log.Info("another server serves already", "socket", o.Config.Listen.Socket)
			return nil, nil
		}
		s, err := server.Open(ctx, o)
		if failed := (*turnstone.Error)(nil); err == nil || !errors.As(err, &failed) ||
			failed.Op != local.OpLock || time.Now().After(until) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(localPause):
		}
	}
}

// serves reports whether a server of this user or of root answers at a socket.
func serves(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, localAsk)
	defer cancel()
	t := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			if err == nil {
				if err = local.CheckOwner(c); err != nil {
					_ = c.Close()
				}
			}
			return c, err
		}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/readyz", nil)
	if err != nil {
		return false
	}
	a, err := t.RoundTrip(r)
	if err != nil {
		return false
	}
	_ = a.Body.Close()
	return a.StatusCode == http.StatusOK
}

// keepServing lets the end of who started the server do no harm: the log may have no reader then, and
// the terminal hangs up. A handler, unlike an ignored signal, is not passed on to other programs.
func keepServing() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP) }
