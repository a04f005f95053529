package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/router"
)

// certEvery is the time between two looks at the certificate, beside the events of its folder.
const certEvery = 10 * time.Second

// A listener serves the router in each operator, whoever leads.
type listener struct {
	address   string
	cert, key string // files; empty: without TLS
	handler   http.Handler
	log       *slog.Logger
}

// listener returns what the flags say about the router's address.
func (f *flags) listener(h http.Handler, log *slog.Logger) *listener {
	return &listener{address: f.Router, cert: f.Cert, key: f.CertKey, handler: h, log: log}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*listener) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (l *listener) Start(ctx context.Context) error {
	at, err := new(net.ListenConfig).Listen(ctx, "tcp", l.address)
	if err != nil {
		return err
	}
	address := at.Addr().String()
	if l.cert != "" || l.key != "" {
		watch, err := certwatcher.New(l.cert, l.key)
		if err != nil {
			_ = at.Close()
			return turnstone.NewError("operator.start", turnstone.KindInvalid, "--router-certificate "+l.cert, err).
				WithHint("name the files of a certificate and its key, as PEM")
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			if err := watch.WithWatchInterval(certEvery).Start(ctx); err != nil {
				l.log.Warn("a new certificate of the router is not noticed", "error", err)
			}
		}()
		at = tls.NewListener(at, &tls.Config{GetCertificate: watch.GetCertificate, MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"}})
	}
	l.log.Info("serving agent-sandbox's clients", "address", address)
	return router.Serve(ctx, at, l.handler)
}
