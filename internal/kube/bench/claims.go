package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// claimTime bounds a number of claims, on a machine that does much else.
const claimTime = 10 * time.Minute

// Claims are SandboxClaim objects whose becoming ready is awaited.
type claims struct {
	to    client.WithWatch
	ready map[string]chan struct{} // closed once

	mu    sync.Mutex
	began map[string]time.Time
	took  map[string]time.Duration
}

// claimAll creates claims and returns how long each took until it was ready, as a watch has seen it.
func claimAll(ctx context.Context, to client.WithWatch, name string, count, callers int) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	c := &claims{to: to, ready: map[string]chan struct{}{}, began: map[string]time.Time{}, took: map[string]time.Duration{}}
	for n := range count {
		c.ready[fmt.Sprint(name, "-", n)] = make(chan struct{})
	}
	w, err := to.Watch(ctx, &extv1.SandboxClaimList{}, client.InNamespace(tenant))
	if err != nil {
		return nil, err
	}
	failed := make(chan error, callers+1)
	go func() { failed <- c.watch(ctx, w) }()
	for i := range callers {
		go func() {
			for n := i; n < count; n += callers {
				if err := c.claim(ctx, fmt.Sprint(name, "-", n)); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range callers {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []time.Duration
	for _, d := range c.took {
		list = append(list, d)
	}
	return list, nil
}

// claim creates a claim and waits until it is ready.
func (c *claims) claim(ctx context.Context, name string) error {
	c.mu.Lock()
	c.began[name] = time.Now()
	c.mu.Unlock()
	if err := c.to.Create(ctx, claimOf(name)); err != nil {
		return err
	}
	select {
	case <-c.ready[name]:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w", name, ctx.Err())
	}
}

// watch notes claims that are ready until ctx ends. The API server ends a watch whose reader is slow:
// the next one begins with all claims that are there.
func (c *claims) watch(ctx context.Context, w watch.Interface) (err error) {
	for err == nil {
		for e := range w.ResultChan() {
			if x, ok := e.Object.(*extv1.SandboxClaim); ok {
				c.note(x)
			}
		}
		w.Stop()
		if err = ctx.Err(); err == nil {
			w, err = c.to.Watch(ctx, &extv1.SandboxClaimList{}, client.InNamespace(tenant))
		}
	}
	return err
}

func (c *claims) note(x *extv1.SandboxClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range x.Status.Conditions {
		if k.Type == "Ready" && k.Status == metav1.ConditionTrue && c.ready[x.Name] != nil && c.took[x.Name] == 0 {
			c.took[x.Name] = time.Since(c.began[x.Name])
			close(c.ready[x.Name])
		}
	}
}
