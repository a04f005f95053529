package plain

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

// Of returns Options.Tenant for the tenants of a node. A turn gets a key that nobody has: it can use
// no session, and what it makes belongs to nobody but the operator.
func Of(set *tenants.Set) func(ctx context.Context, name string) (Tenant, error) {
	return func(ctx context.Context, name string) (Tenant, error) {
		st, err := set.Of(ctx, name)
		if err != nil {
			return Tenant{}, err
		}
		return Tenant{Sandboxes: st.Sandboxes, Runner: st.Runner,
			Open: func(id turnstone.SandboxID, operator bool) (bool, error) {
				dir, err := st.Folder(kept.Folder)
				if err != nil {
					return false, err
				}
				rec, err := kept.Load(dir, id)
				if rec == nil {
					return operator && st.Operator(), err
				}
				return rec.Open, err
			},
			Limit: func(ctx context.Context) context.Context {
				c := owners.Caller{Key: channel.NewKeyPair().Public}
				return st.Owners.Limit(ctx, c, owners.Read)
			}}, nil
	}
}
