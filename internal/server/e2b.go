package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/e2b"
	"turnstone.dev/turnstone/internal/e2b/atnode"
	"turnstone.dev/turnstone/internal/e2b/pass"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/local"
)

// An e2bDoor answers E2B's clients at an address of its own.
type e2bDoor struct {
	*e2b.Door
	listener net.Listener
	tls      *tls.Config // nil: no TLS
	limits   e2b.Limits
}

// stallTime is how long a caller may read nothing of an output, and its command wait.
const stallTime = 10 * time.Minute

func (s *Server) openE2B(ctx context.Context) error {
	at := s.c.E2B.Listen
	if at == "" {
		return nil
	}
	if s.node == nil || s.controller == nil || s.gateway == nil { // the settings were checked
		return turnstone.Errorf("server.e2b", turnstone.KindInvalid, "e2b.listen",
			"needs the roles gateway, controller and node in one process")
	}
	key, err := e2bKey(s)
	if err != nil {
		return err
	}
	near := atnode.Node{}
	near.Node, near.Tenants = s.node.Near()
	d := &e2bDoor{limits: e2b.Limits{Connections: s.c.Limits.Connections, Idle: s.c.Limits.Idle,
		Handshake: s.c.Limits.Handshake, Stall: stallTime, End: s.c.Limits.End}}
	d.Door = e2b.New(e2b.Options{Node: near, Key: key, Control: s.controller.Callers(),
		Verifier: s.controller.verifier, Begin: s.gateway.Begin, Domain: s.c.E2B.Domain,
		Sessions: s.c.E2B.Sessions == config.On, Log: s.log})
	s.onClose(d.Close)
	if d.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", at); err != nil {
		return turnstone.NewError("server.listen", turnstone.KindUnavailable, at, err).
			WithHint(local.ListenHint(err, "e2b.listen"))
	}
	s.onClose(ignoreClosed(d.listener))
	if s.tls != nil {
		d.tls = s.tls.Server("h2", "http/1.1")
	} else if !config.Loopback(d.listener.Addr().String()) && len(s.c.Listen.Proxies) == 0 {
		return turnstone.Errorf("server.listen", turnstone.KindInvalid, at,
			"is reached from other machines, without TLS").WithHint("set tls.certificate and " +
			"tls.key, or listen.proxies if a proxy in front ends TLS")
	}
	s.e2b = d
	return nil
}

// e2bKey returns the secret of the door, which is made at the first use.
func e2bKey(s *Server) (*pass.Key, error) {
	dir, err := s.o.Dir.MkdirAll("keys")
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
