package remote

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// Bounds of repetitions of a call. The pause is doubled.
const (
	maxTries   = 4
	retryPause = 100 * time.Millisecond
	maxWait    = 10 * time.Second // that a server may ask for
)

// A caller adds the token and proofs of this client's key to calls, repeats what is safe to repeat, and explains errors. It is a
// connect.Interceptor.
type caller struct {
	server *Server
	pause  time.Duration // before the first repetition
}

// WrapUnary implements connect.Interceptor.
func (c *caller) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		pause, met := c.pause, 0
		m, _ := r.Any().(proto.Message)
		c.server.avoid(ctx, m)
		for try := 1; ; try++ {
			proved, err := c.server.prove(m)
			if err != nil {
				return nil, err
			}
			a, err := c.once(ctx, r, next)
			if err == nil {
				return a, nil
			}
			if again, failed := c.server.meet(ctx, m, proved, err); failed != nil {
				return nil, failed
			} else if again && met < maxMeets {
				met++
				try--
				continue
			}
			wait := max(pause, api.RetryAfter(err))
			if try == maxTries || !repeatable(r) || !api.Retryable(err) || wait > maxWait ||
				ctx.Err() != nil {
				return nil, err
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil, err
			}
			pause *= 2
		}
	}
}

// once makes a call.
func (c *caller) once(ctx context.Context, r connect.AnyRequest, next connect.UnaryFunc) (
	connect.AnyResponse, error) {
	auth, err := c.server.authorization(ctx)
	if err != nil {
		return nil, err
	}
	if auth != "" {
		r.Header().Set("Authorization", auth)
	}
	a, err := next(ctx, r)
	return a, c.server.explain(err)
}

// asks are the calls that answer a statement: one more of them changes nothing.
var asks = map[string]bool{connectv1.TurnServiceConnectTurnProcedure: true,
	connectv1.SessionServiceConnectNodeProcedure:       true,
	connectv1.SessionServiceConnectSessionProcedure:    true,
	connectv1.SandboxServiceConnectSandboxProcedure:    true,
	connectv1.TemplateServiceConnectTemplatesProcedure: true}

// repeatable reports whether a call whose answer was lost can be made again: it has no effect, or
// its idempotency key makes the server do it once.
func repeatable(r connect.AnyRequest) bool {
	spec := r.Spec()
	if spec.IdempotencyLevel == connect.IdempotencyNoSideEffects || asks[spec.Procedure] {
		return true
	}
	m, ok := r.Any().(proto.Message)
	return ok && api.IdempotencyKey(m) != ""
}

// WrapStreamingClient implements connect.Interceptor. Streams are not repeated: a watch begins with
// a list, which only its caller can compare.
func (c *caller) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		auth, err := c.server.authorization(ctx)
		if auth != "" {
			conn.RequestHeader().Set("Authorization", auth)
		}
		return &explained{conn, c.server, err}
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (c *caller) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// explained is a stream whose errors are explained.
type explained struct {
	connect.StreamingClientConn
	server *Server
	failed error // nothing is sent then
}

func (e *explained) Send(m any) error {
	if e.failed != nil {
		return e.failed
	}
	return e.server.explain(e.StreamingClientConn.Send(m))
}

func (e *explained) Receive(m any) error {
	if e.failed != nil {
		return e.failed
	}
	return e.server.explain(e.StreamingClientConn.Receive(m))
}
