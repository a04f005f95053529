package control

import (
	"context"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// reportScopes are what a token for reports grants: they are about sandboxes of any client. It is
// another token, so that the usual one ends only what this client has made.
var reportScopes = []string{string(auth.SandboxesRead), string(auth.SandboxesDelete), string(auth.SandboxesAdmin)}

func (c *Client) reports(ctx context.Context, namespace string) (*tenant, error) {
	return c.with(ctx, namespace+"/reports", namespace, reportScopes)
}

// Live implements agents.Reports.
func (c *Client) Live(ctx context.Context, namespace string) ([]*v1.Sandbox, error) {
	if namespace == auth.OperatorTenant {
		return nil, nil // the server's own tenant is not the namespace
	}
	t, err := c.reports(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return list(ctx, t, &v1.SandboxFilter{States: []v1.SandboxState{v1.SandboxState_SANDBOX_STATE_READY,
		v1.SandboxState_SANDBOX_STATE_RUNNING}})
}

// End implements agents.Reports.
func (c *Client) End(ctx context.Context, namespace, id string) error {
	t, err := c.reports(ctx, namespace)
	if err != nil {
		return err
	}
	return remove(ctx, t, id)
}
