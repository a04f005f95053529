package router

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/server/patience"
)

// Bounds of a caller's connection.
const (
	maxHead   = 48 << 10
	headTime  = 10 * time.Second
	idleTime  = 2 * time.Minute  // between two requests
	stallTime = 10 * time.Minute // without a byte of a body, or with none read of an answer
	endTime   = 10 * time.Second
	maxConns  = 2 * maxRequests
)

// Serve answers callers of l until ctx ends, and closes l. Others than maxConns wait in the queue of the
// system.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: patience.Handler(h, stallTime), ReadHeaderTimeout: headTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHead, ErrorLog: log.New(io.Discard, "", 0)} // all of it is about callers
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = s.Shutdown(end)
		_ = s.Close()
	})
	err := s.Serve(&few{Listener: l, places: make(chan struct{}, maxConns), ended: ctx.Done()})
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) && ctx.Err() != nil {
		return nil
	}
	return err
}

// few bounds the connections of a listener at one time.
type few struct {
	net.Listener
	places chan struct{}
	ended  <-chan struct{}
}

// Accept implements net.Listener.
func (f *few) Accept() (net.Conn, error) {
	select {
	case f.places <- struct{}{}:
	case <-f.ended:
		return nil, net.ErrClosed
	}
	c, err := f.Listener.Accept()
	if err != nil {
		<-f.places
		return nil, err
	}
	return &placed{Conn: c, places: f.places}, nil
}

// A placed connection frees its place when it is closed.
type placed struct {
	net.Conn
	once   sync.Once
	places chan struct{}
}

// Close implements net.Conn.
func (c *placed) Close() error {
	c.once.Do(func() { <-c.places })
	return c.Conn.Close()
}
