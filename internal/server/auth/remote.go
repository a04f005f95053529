package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Times of an exchange with an issuer.
const (
	fetchTime = 5 * time.Second  // for both documents
	retryTime = 30 * time.Second // between two exchanges, whatever tokens ask for
	redirects = 3
)

// A remote holds the keys of an OpenID Connect issuer. It asks the issuer at most once per
// retryTime and with one request at a time, however many tokens name keys that are not known.
type remote struct {
	config OIDC
	clock  *Clock
	client *http.Client
	warn   func(error)
	ctx    context.Context // ends with the verifier
	tasks  *sync.WaitGroup

	mu      sync.Mutex
	keys    map[string]verifyingKey // nil: never fetched
	got     moment                  // when keys came
	asked   bool
	tried   moment        // when the last exchange began
	failed  error         // of the last exchange
	running chan struct{} // closed when the running exchange ends; nil: none runs
}

func newRemote(ctx context.Context, o OIDC, v *TokenVerifier) (*remote, error) {
	o, err := o.complete(v.config.Name)
	if err != nil {
		return nil, err
	}
	transport := v.config.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxResponseHeaderBytes, t.MaxIdleConnsPerHost, t.MaxConnsPerHost = 32<<10, 1, 2
		transport = t
	}
	log := v.config.Log
	return &remote{config: o, clock: v.clock, ctx: ctx, tasks: &v.tasks,
		client: &http.Client{Transport: transport, CheckRedirect: sameScheme},
		warn: func(err error) {
			log.Warn("the keys of an issuer cannot be fetched", "issuer", o.Issuer, "error", err)
		}}, nil
}

// sameScheme refuses redirects that anybody on the way could have made, and long chains.
func sameScheme(next *http.Request, via []*http.Request) error {
	if len(via) > redirects {
		return fmt.Errorf("redirects more than %d times", redirects)
	}
	if next.URL.Scheme != via[0].URL.Scheme || !trusted(next.URL) || next.URL.User != nil {
		return errors.New("redirects to another scheme")
	}
	return nil
}

// key returns the key called id, or nil if the issuer does not have it. The error has the Reason
// Stale if the issuer does not answer and its keys are too old.
func (r *remote) key(ctx context.Context, id string) (*verifyingKey, error) {
	for first := true; ; first = false {
		r.mu.Lock()
		age := r.clock.since(r.got)
		k, known := r.keys[id]
		alive := r.keys != nil && age <= r.config.Fresh+r.config.Outage
		fresh := alive && age <= r.config.Fresh
		if alive && known && (fresh || !first || r.failed != nil) {
			// Old keys are used while the issuer fails, and asked for again on the side.
			if age > r.config.Fresh*3/4 {
				r.start()
			}
			r.mu.Unlock()
			return &k, nil
		}
		var wait chan struct{}
		if first {
			wait = r.start()
		}
		failed := r.failed
		r.mu.Unlock()
		if wait == nil {
			if alive && known {
				return &k, nil
			}
			if alive && failed == nil {
				return nil, nil
			}
			return nil, refuse("auth.verify", Stale, "cannot be verified: its issuer %s does not "+
				"answer with its keys", r.config.Issuer)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, refuse("auth.verify", Stale, "cannot be verified: %w", ctx.Err())
		}
	}
}

// start begins an exchange unless one runs, and returns the channel of the one that runs; nil: the
// last exchange was too recently. The caller holds mu.
func (r *remote) start() chan struct{} {
	if r.running != nil {
		return r.running
	}
	if r.asked && r.clock.since(r.tried) < retryTime || r.ctx.Err() != nil {
		return nil
	}
	done := make(chan struct{})
	r.running, r.asked, r.tried = done, true, r.clock.now()
	r.tasks.Go(func() {
		defer close(done)
		keys, err := r.fetch()
		if err != nil && r.ctx.Err() == nil {
			r.warn(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running, r.failed = nil, err
		if err == nil {
			r.keys, r.got = keys, r.tried
		}
	})
	return done
}

// fetch asks the issuer where its keys are, and for the keys.
func (r *remote) fetch() (map[string]verifyingKey, error) {
	ctx, end := context.WithTimeout(r.ctx, fetchTime)
	defer end()
	b, err := r.get(ctx, strings.TrimSuffix(r.config.Issuer, "/")+
		"/.well-known/openid-configuration", maxDiscovery)
	if err != nil {
		return nil, err
	}
	at, err := decodeDiscovery(b, r.config.Issuer)
	if err != nil {
		return nil, fmt.Errorf("the discovery document %w", err)
	}
	u, err := url.Parse(at)
	issuer, _ := url.Parse(r.config.Issuer)
	if err != nil || u.User != nil || !trusted(u) || u.Scheme != issuer.Scheme {
		return nil, errors.New("the discovery document names an address that is not https")
	}
	if b, err = r.get(ctx, at, maxJWKS); err != nil {
		return nil, err
	}
	keys, err := decodeJWKS(b)
	if err != nil {
		return nil, fmt.Errorf("the set of keys %w", err)
	}
	return keys, nil
}

// get returns what a URL answers, up to limit bytes.
func (r *remote) get(ctx context.Context, at string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "turnstone")
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %d", req.URL.Redacted(), resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s answers more than %d bytes", req.URL.Redacted(), limit)
	}
	return b, err
}
