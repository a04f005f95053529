package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// An Interruption is a context's cause of cancellation: the user, or a service manager, wants turn
// to stop.
type Interruption struct{ Signal syscall.Signal }

func (i Interruption) Error() string { return "interrupted (" + i.Signal.String() + ")" }

// Is makes errors.Is report an interruption as a cancellation.
func (i Interruption) Is(target error) bool { return target == context.Canceled }

// Interruptible returns a context that ends with the first SIGINT, SIGTERM or SIGHUP. The second
// signal ends the process immediately with code, without any cleanup; the next start cleans up.
func Interruptible(tell func(string), code int) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	stop := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case <-stop:
				return
			case s := <-signals:
				if !first {
					os.Exit(code)
				}
				sig, _ := s.(syscall.Signal)
				cancel(Interruption{sig})
				tell("interrupted, stopping; interrupt again to stop at once")
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stop)
		cancel(nil)
	}
}
