package control

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// routeScopes are what a token for a router grants.
var routeScopes = []string{string(auth.SandboxesRead), string(auth.SandboxesConnect)}

// Routes are the calls of a router, with a token of its own for each namespace: its callers use up the rate
// of this one, and the objects of the namespace are followed with another.
type Routes struct{ c *Client }

// Routes returns the calls of a router.
func (c *Client) Routes() Routes { return Routes{c} }

func (r Routes) of(ctx context.Context, namespace string) (*tenant, error) {
	return r.c.with(ctx, namespace+"/routes", namespace, routeScopes)
}

// List implements router.Server.
func (r Routes) List(ctx context.Context, namespace, by string) ([]*v1.Sandbox, error) {
	t, err := r.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return managed(ctx, t, by)
}

// Open implements router.Server. The caller closes the channel.
func (r Routes) Open(ctx context.Context, namespace, id string) (io.ReadWriteCloser, error) {
	t, err := r.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return t.boxes.Open(ctx, turnstone.SandboxID(id))
}
