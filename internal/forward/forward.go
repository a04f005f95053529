// Package forward passes connections of a listener on to another end: a port of a sandbox.
package forward

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// Dial opens the other end of a connection.
type Dial func(ctx context.Context) (far io.ReadWriteCloser, err error)

// Serve forwards the connections of l, at most limit at a time, until ctx ends, and closes l. failed
// is called from any goroutine for each connection that could not be forwarded; it may be nil. Serve
// returns the cause of ctx's end when all connections have ended.
func Serve(ctx context.Context, l net.Listener, limit int, dial Dial, failed func(error)) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, limit)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil { // probably out of descriptors
			time.Sleep(100 * time.Millisecond)
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			far, err := dial(ctx)
			if err != nil {
				_ = conn.Close()
				if failed != nil && ctx.Err() == nil {
					failed(err)
				}
				return
			}
			defer context.AfterFunc(ctx, func() { _ = far.Close() })()
			Join(far, conn)
		})
	}
}

// Join copies in both directions until both sides have ended or a side has failed, and closes both.
// The end of one direction is passed on by CloseWrite, where a side has it.
func Join(a, b io.ReadWriteCloser) {
	var both sync.WaitGroup
	pump := func(dst io.WriteCloser, src io.Reader) {
		_, err := io.Copy(dst, src)
		w, ok := dst.(interface{ CloseWrite() error })
		if err != nil || !ok || w.CloseWrite() != nil {
			_, _ = a.Close(), b.Close()
		}
	}
	both.Go(func() { pump(a, b) })
	both.Go(func() { pump(b, a) })
	both.Wait()
	_, _ = a.Close(), b.Close()
}
