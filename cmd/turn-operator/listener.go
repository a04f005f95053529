package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/control"
	"turnstone.dev/turnstone/internal/kube/reviews"
	"turnstone.dev/turnstone/internal/kube/router"
)

// certEvery is the time between two looks at the certificate, beside the events of its folder.
const certEvery = 10 * time.Second

// reviewRate and reviewBurst bound the questions to the API server about callers, per second: whoever reaches
// the router can ask with invented tokens.
const reviewRate, reviewBurst = 100, 200

// routerOptions returns what the flags say about the router.
func (f *flags) routerOptions(cfg *rest.Config, m manager.Manager, to *control.Client, o *agents.Options) (
	router.Options, error) {
	r := router.Options{Server: to.Routes(), Cluster: o.Cluster, Log: o.Log, UID: uidOf(m.GetClient()),
		Network: f.Network || f.Review, Forwarded: f.Forwarded}
	if !f.Review {
		return r, nil
	}
	own := rest.CopyConfig(cfg)
	own.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(reviewRate, reviewBurst)
	c, err := client.New(own, client.Options{Scheme: m.GetScheme()})
	if err != nil {
		return r, err
	}
	r.Review = reviews.New(c, f.Audience...)
	return r, nil
}

// uidOf returns the UIDs of Sandboxes in the cache of a manager: whoever asks the router costs the API
// server nothing.
func uidOf(c client.Client) func(ctx context.Context, namespace, name string) (string, error) {
	return func(ctx context.Context, namespace, name string) (string, error) {
		s := &sandboxv1.Sandbox{}
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, s)
		if apierrors.IsNotFound(err) {
			err = turnstone.NewError("router.find", turnstone.KindNotFound, "sandbox "+name, err)
		}
		return string(s.UID), err
	}
}

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
