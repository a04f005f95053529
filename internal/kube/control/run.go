package control

import (
	"context"
	"io"

	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/container"
)

// FollowContainer implements agents.Server.
func (c *Client) FollowContainer(ctx context.Context, namespace, id string, m agents.Main, tell func(agents.Process)) error {
	return container.Follow(ctx, container.Options{Main: m, Tell: tell,
		Open: func(ctx context.Context) (io.ReadWriteCloser, error) { return c.Open(ctx, namespace, id) }})
}
