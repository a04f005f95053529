package server

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/gateway"
	"turnstone.dev/turnstone/internal/server/local"
	"turnstone.dev/turnstone/internal/server/tlsfiles"
)

// A listener is a socket and who connects to it.
type listener struct {
	net.Listener
	peers   bool
	options gateway.ServeOptions // of callers
}

// Inherited are the sockets that a service manager made (sd_listen_fds(3)). Their names, which are
// FileDescriptorName= in a unit, say who connects: callers, operator or peers. Without such a name a
// TCP socket is for callers, and a unix socket for the operator.
type Inherited struct {
	Callers, Operator, Peers net.Listener // nil: the server listens itself
}

// Inherit takes the sockets of the service manager, if there are any. The error is of kind Invalid.
func Inherit() (*Inherited, error) {
	all, err := activation.ListenersWithNames()
	if err != nil {
		return nil, turnstone.NewError("server.listen", turnstone.KindInvalid, "LISTEN_FDS", err)
	}
	i := &Inherited{}
	for name, list := range all {
		for _, l := range list {
			if err := i.add(name, l); err != nil {
				return nil, err
			}
		}
	}
	return i, nil
}

func (i *Inherited) add(name string, l net.Listener) error {
	to := map[string]*net.Listener{"callers": &i.Callers, "operator": &i.Operator,
		"peers": &i.Peers}[name]
	if to == nil {
		if to = &i.Callers; l.Addr().Network() == "unix" {
			to = &i.Operator
		}
	}
	if *to != nil {
		return turnstone.Errorf("server.listen", turnstone.KindInvalid, "socket "+l.Addr().String(),
			"is the second one with its purpose").
			WithHint("set FileDescriptorName= to callers, operator or peers in the socket unit")
	}
	*to = l
	return nil
}

// listen opens the listeners of the settings.
func (s *Server) listen(ctx context.Context) error {
	given := s.o.Inherited
	if given == nil {
		given = &Inherited{}
	}
	if s.c.Has(config.Gateway) {
		if err := s.listenCallers(ctx, given.Callers); err != nil {
			return err
		}
	}
	if s.controller != nil && (s.c.Listen.Socket != "" || given.Operator != nil) {
		l, err := given.Operator, error(nil)
		if l == nil {
			l, err = local.Listen(ctx, s.c.Listen.Socket, s.log)
		} else {
			l = local.Own(l, s.log)
		}
		if err != nil {
			return err
		}
		s.add(&listener{Listener: l, options: gateway.ServeOptions{Context: operator(s.log)}})
	}
	if s.c.Peers.Listen != "" || given.Peers != nil {
		l, err := given.Peers, error(nil)
		switch {
		case l == nil:
			l, err = s.peers.Listen(ctx)
		case l.Addr().Network() == "unix":
			l = local.Own(l, s.log)
		case s.c.Peers.Authority == "" || s.c.Peers.Certificate == "":
			err = turnstone.Errorf("server.listen", turnstone.KindInvalid, l.Addr().String(),
				"is TCP, which needs mutual TLS between roles").
				WithHint("set peers.authority, peers.certificate and peers.key")
		}
		if err != nil {
			return err
		}
		s.add(&listener{Listener: l, peers: true})
	}
	return nil
}

func (s *Server) listenCallers(ctx context.Context, l net.Listener) error {
	at := s.c.Listen.Address
	if at == "" && l == nil {
		return nil
	}
	if l != nil {
		at = l.Addr().String()
	} else {
		var err error
		if l, err = new(net.ListenConfig).Listen(ctx, "tcp", at); err != nil {
			return turnstone.NewError("server.listen", turnstone.KindUnavailable, at, err).
				WithHint(local.ListenHint(err, "listen.address"))
		}
	}
	s.onClose(ignoreClosed(l))
	if l.Addr().Network() == "unix" {
		return turnstone.Errorf("server.listen", turnstone.KindInvalid, at,
			"is a unix socket, and callers need TCP")
	}
	o := gateway.ServeOptions{}
	if s.c.TLS.Certificate != "" {
		var err error
		s.tls, err = tlsfiles.Open(tlsfiles.Files{Certificate: s.c.TLS.Certificate,
			Key: s.c.TLS.Key}, func(err error) {
			s.log.Error("the certificate cannot be read again; the old one stays", "error", err)
		})
		if err != nil {
			return err
		}
		o.TLS = s.tls.Server("h2", "http/1.1")
	} else if !config.Loopback(l.Addr().String()) && len(s.c.Listen.Proxies) == 0 {
		// of a name that is no loopback address, or of a service manager
		return turnstone.Errorf("server.listen", turnstone.KindInvalid, at,
			"is reached from other machines, without TLS").WithHint("set tls.certificate and " +
			"tls.key, or listen.proxies if a proxy in front ends TLS")
	}
	s.listeners = append(s.listeners, &listener{Listener: l, options: o})
	return nil
}

// add keeps a listener, which Close closes.
func (s *Server) add(l *listener) {
	s.onClose(ignoreClosed(l.Listener))
	s.listeners = append(s.listeners, l)
}

func ignoreClosed(l net.Listener) func() error {
	return func() error { _ = l.Close(); return nil }
}

// operator authenticates the peers of the operator's socket by their user ID, which Accept has
// checked.
func operator(log *slog.Logger) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, c net.Conn) context.Context {
		uid, err := local.UID(c)
		if err != nil || uid != os.Geteuid() && uid != 0 {
			log.Warn("the operator's socket has a connection of nobody", "error", err)
			return ctx
		}
		return auth.NewContext(ctx, auth.Operator("uid:"+strconv.Itoa(uid)))
	}
}

// Addresses returns where the server listens: HOST:PORT and unix:PATH.
func (s *Server) Addresses() (all []string) {
	for _, l := range s.listeners {
		at := l.Addr().String()
		if l.Addr().Network() == "unix" && !strings.HasPrefix(at, "unix:") {
			at = "unix:" + at
		}
		all = append(all, at)
	}
	return all
}
