// Package doors answers callers of other protocols at addresses of their own: clients of E2B, and of
// the Model Context Protocol.
package doors

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/e2b"
	"turnstone.dev/turnstone/internal/e2b/atnode"
	"turnstone.dev/turnstone/internal/e2b/pass"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/local"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/statedir"
)

// An E2B answers E2B's clients at an address of its own.
type E2B struct {
	*e2b.Door
	listener net.Listener
	tls      *tls.Config // nil: no TLS
	limits   e2b.Limits
}

// stallTime is how long a caller may read nothing of an output, and its command wait.
const stallTime = 10 * time.Minute

// E2BOptions are what the door of E2B's clients needs. Node and Tenants are those of the node of this
// process.
type E2BOptions struct {
	Config  *config.Config
	Dir     *statedir.Dir
	TLS     *tls.Config // nil: no TLS
	Node    *node.Node
	Tenants *tenants.Set
	// Control, Arrive, Verifier and Begin are those of e2b.Options.
	Control  http.Handler
	Arrive   func(*http.Request) error
	Verifier auth.Verifier
	Begin    func(context.Context, auth.Principal) (context.Context, func(), error)
	Log      *slog.Logger
}

// OpenE2B listens at the setting e2b.listen. Close it.
func OpenE2B(ctx context.Context, o E2BOptions) (_ *E2B, err error) {
	at := o.Config.E2B.Listen
	key, err := e2bKey(o.Dir)
	if err != nil {
		return nil, err
	}
	l := o.Config.Limits
	d := &E2B{tls: o.TLS, limits: e2b.Limits{Idle: l.Idle,
		Handshake: l.Handshake, Stall: stallTime, End: l.End}}
	if d.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", at); err != nil {
		return nil, turnstone.NewError("server.listen", turnstone.KindUnavailable, at, err).
			WithHint(local.ListenHint(err, "e2b.listen"))
	}
	_, port, _ := net.SplitHostPort(d.listener.Addr().String())
	d.Door = e2b.New(e2b.Options{Node: atnode.Node{Node: o.Node, Tenants: o.Tenants}, Key: key,
		Control: o.Control, Arrive: o.Arrive, Verifier: o.Verifier, Begin: o.Begin,
		// Without a domain, clients would take that of E2B's service.
		Domain:   cmp.Or(o.Config.E2B.Domain, net.JoinHostPort("localhost", port)),
		Sessions: o.Config.E2B.Sessions == config.On, Log: o.Log})
	d.listener = bound(d.listener, l.Connections, o.Config.Listen.Proxies)
	if d.tls == nil && !config.Loopback(d.listener.Addr().String()) && len(o.Config.Listen.Proxies) == 0 {
		return nil, errors.Join(turnstone.Errorf("server.listen", turnstone.KindInvalid, at,
			"is reached from other machines, without TLS").WithHint("set tls.certificate and "+
			"tls.key, or listen.proxies if a proxy in front ends TLS"), d.Close())
	}
	return d, nil
}

// Serve answers callers until ctx ends.
func (d *E2B) Serve(ctx context.Context) error {
	return d.Door.Serve(ctx, d.listener, d.tls, d.limits)
}

// Addr returns where it listens.
func (d *E2B) Addr() net.Addr { return d.listener.Addr() }

// Close ends what its callers began.
func (d *E2B) Close() error {
	if err := d.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return errors.Join(err, d.Door.Close())
	}
	return d.Door.Close()
}

// e2bKey returns the secret of the door, which is made at the first use.
func e2bKey(home *statedir.Dir) (*pass.Key, error) {
	dir, err := home.MkdirAll("keys")
	if err != nil {
		return nil, err
	}
	path := dir + "/e2b"
	fault := func(err error) error {
		return turnstone.NewError("server.e2b", turnstone.KindUnavailable, "keys/e2b", err).
			WithHint("let nobody but the server's user read and write the file")
	}
	text, err := os.ReadFile(path)
	var secret [pass.KeySize]byte
	switch {
	case errors.Is(err, fs.ErrNotExist):
		_, _ = rand.Read(secret[:]) // documented never to fail
		if err := filestamp.WriteFile(path, secret[:], 0o600); err != nil {
			return nil, fault(err)
		}
	case err != nil:
		return nil, fault(err)
	case len(text) != len(secret):
		return nil, fault(errors.New("is damaged"))
	default:
		copy(secret[:], text)
	}
	return pass.NewKey(secret), nil
}
