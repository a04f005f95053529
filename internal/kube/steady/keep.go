package steady

import (
	"context"
	"log/slog"
	"time"
)

// The time between two runs: it doubles as long as runs end soon.
const (
	minWait = time.Second
	maxWait = 30 * time.Second
)

// Keep runs a manager again whenever it ends, until ctx does: a manager gives up when it loses the lease
// of the leader, as it does while the API server is away, and when its caches cannot be filled. run
// makes a new manager each time. The error of a run is logged; that of a first run which ends at once is
// returned, because then the settings are wrong, such as an address that is in use.
func Keep(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	wait := minWait
	for first := true; ; first = false {
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil || first && time.Since(began) < minWait {
			return err
		}
		if time.Since(began) > maxWait {
			wait = minWait
		}
		log.Warn("the operator has stopped, and starts again", "in", wait.String(), "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, maxWait)
	}
}
