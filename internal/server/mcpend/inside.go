package mcpend

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/remote/runner"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/statedir"
)

// An Inside is the server that an endpoint is in, and a client of.
type Inside struct {
	Arrive   func(*http.Request) error // as in Options
	Verifier auth.Verifier
	Dial     func(ctx context.Context) (net.Conn, error) // as a caller of the network
	Dir      *statedir.Dir
	Idle     time.Duration
	Log      *slog.Logger
}

// NewInside returns the endpoint of a server.
func NewInside(i Inside) *Endpoint {
	hide := i.Dir.Paths()
	return New(Options{Arrive: i.Arrive, Verifier: i.Verifier, Idle: i.Idle, Log: i.Log,
		Open: func(ctx context.Context, caller string, token func() (string, error)) (mcpdoor.Place,
			error) {
			s, err := hosts.Client{Dir: i.Dir.Root}.Inside(ctx, i.Dial, caller, token)
			if err != nil {
				return mcpdoor.Place{}, err
			}
			h := runner.Open(s, runner.Options{Dir: i.Dir.Root})
			boxes := s.AllSandboxes()
			return mcpdoor.Place{Turns: h, Sandboxes: boxes, Extend: boxes.Extend, Hide: hide.Text,
				Close: h.Close}, nil
		}})
}
