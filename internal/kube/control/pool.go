package control

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// maxCount is the most sandboxes of a pool that the control API takes.
const maxCount = 100_000

// SetPool implements agents.Pools.
func (c *Client) SetPool(ctx context.Context, namespace, name string, like *v1.CreateSandboxRequest,
	replicas int32, lives time.Duration) (agents.Waiting, error) {
	t, err := c.with(ctx, namespace+"/pools", namespace, poolScopes)
	if err != nil {
		return agents.Waiting{}, err
	}
	m := &v1.SetPoolRequest{Name: name, Machine: like.GetMachine(), Count: uint32(min(replicas, maxCount)),
		Ttl: durationpb.New(lives)}
	switch s := like.GetSource().(type) {
	case *v1.CreateSandboxRequest_Template:
		m.Source = &v1.SetPoolRequest_Template{Template: s.Template}
	case *v1.CreateSandboxRequest_Image:
		m.Source = &v1.SetPoolRequest_Image{Image: s.Image}
	}
	a, err := t.server.Pools.SetPool(ctx, connect.NewRequest(m))
	if err != nil {
		return agents.Waiting{}, err
	}
	return agents.Waiting{Target: int32(a.Msg.Target), Ready: int32(a.Msg.Ready), Making: int32(a.Msg.Making)}, nil
}
