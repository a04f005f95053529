// Package atnode is the node in this process, for E2B's door.
package atnode

import (
	"context"
	"io"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/e2b"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/wire"
)

// A Node implements e2b.Node. It is safe for concurrent use.
type Node struct {
	Node    *node.Node
	Tenants *tenants.Set
}

// Name implements e2b.Node.
func (n Node) Name() string { return n.Node.Name() }

// ChannelKey implements e2b.Node.
func (n Node) ChannelKey() channel.PublicKey { return n.Node.ChannelKey() }

// IDs implements e2b.Node.
func (n Node) IDs(ctx context.Context) (all []turnstone.SandboxID) {
	for _, st := range n.Tenants.All() {
		infos, err := st.Sandboxes.List(ctx)
		if err != nil {
			continue // its holder is about to end
		}
		for _, i := range infos {
			if !i.State.Final() {
				all = append(all, i.ID)
			}
		}
	}
	return all
}

// Find implements e2b.Node.
func (n Node) Find(id turnstone.SandboxID, owner func(tenant string) (channel.PublicKey, error)) (
	e2b.Found, error) {
	missing := turnstone.Errorf("e2b.find", turnstone.KindNotFound, "sandbox "+string(id), "was not found")
	st, err := n.Tenants.Holding(id)
	if err != nil {
		return e2b.Found{}, missing
	}
	i, err := st.Sandboxes.Get(id)
	if err != nil {
		return e2b.Found{}, missing
	}
	dir, err := st.Folder(kept.Folder)
	if err != nil {
		return e2b.Found{}, err
	}
	rec, err := kept.Load(dir, id)
	if err != nil {
		return e2b.Found{}, err
	}
	key, err := owner(st.Tenant)
	if err != nil {
		return e2b.Found{}, err
	}
	if rec == nil || rec.Open || rec.Client != key {
		return e2b.Found{}, missing
	}
	f := e2b.Found{Tenant: st.Tenant, Info: i}
	f.Open = func(ctx context.Context) (io.ReadWriteCloser, error) { return st.Sandboxes.Dial(ctx, id) }
	f.Dial = func(ctx context.Context, port uint16) (net.Conn, error) {
		stream, err := f.Open(ctx)
		if err != nil {
			return nil, err
		}
		return wire.DialPort(ctx, stream, wire.SandboxConnectParams{Port: int64(port), Loopback: true})
	}
	f.Commit = func(ctx context.Context) error { _, err := st.Sandboxes.Commit(ctx, id); return err }
	f.Discard = func(ctx context.Context) error { return st.Sandboxes.Discard(ctx, id) }
	return f, nil
}
