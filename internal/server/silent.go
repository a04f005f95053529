package server

import (
	"context"
	"log/slog"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
)

// silentRetry is when a caller may try again while the controller does not answer.
const silentRetry = 5 * time.Second

// silent returns an interceptor for calls of the controller, whose errors callers get: that it cannot
// be reached has no address and no path of a socket. The log has them.
func silent(log *slog.Logger) connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			answer, err := next(ctx, r)
			if !api.Unreached(ctx, err) {
				return answer, err
			}
			log.Warn("the controller cannot be reached", "procedure", r.Spec().Procedure,
				"error", err)
			return nil, &api.Status{RetryAfter: silentRetry, Err: turnstone.Errorf("role.call",
				turnstone.KindUnavailable, "the controller", "does not answer").
				WithHint("wait until the controller is back; the server's log says why")}
		}
	})
}
