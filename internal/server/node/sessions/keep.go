package sessions

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/wire"
)

// kept runs an operation about no session, for the operator, and sends its report.
func kept[T any](ctx context.Context, v *served, c *wire.Conn, id wire.StreamID, what string,
	f func(ctx context.Context) (T, error)) error {
	if !v.caller.Operator {
		return forbidden(what)
	}
	return report(ctx, v, c, id, owners.Own, heavy, f)
}

func (v *served) Gc(ctx context.Context, c *wire.Conn, p *wire.SessionGcParams) error {
	req := turnstone.GCRequest{KeepAnonymous: time.Duration(p.KeepAnonymous),
		KeepUnreachable: time.Duration(p.KeepUnreachable), DryRun: p.DryRun}
	if p.Now != "" {
		now, err := time.Parse(time.RFC3339Nano, p.Now)
		if err != nil {
			return invalid("now", "%w", err)
		}
		req.Now = now
	}
	return kept(ctx, v, c, p.Report, "garbage collection",
		func(ctx context.Context) (*turnstone.GCReport, error) { return v.x.GC(ctx, req) })
}

func (v *served) Fsck(ctx context.Context, c *wire.Conn, p *wire.SessionFsckParams) error {
	return kept(ctx, v, c, p.Report, "a check of the store", v.x.Fsck)
}

func (v *served) Usage(ctx context.Context, c *wire.Conn, p *wire.SessionUsageParams) error {
	return kept(ctx, v, c, p.Report, "the disk usage", v.x.Usage)
}

func (v *served) Homes(ctx context.Context, c *wire.Conn, p *wire.SessionHomesParams) error {
	return report(ctx, v, c, p.Report, owners.Read, light, v.x.Homes)
}

func (v *served) HasHome(ctx context.Context, _ *wire.Conn, p *wire.SessionHasHomeParams) error {
	return v.do(ctx, owners.Read, light, func(ctx context.Context) error {
		return v.x.HasHome(ctx, p.Name)
	})
}

func (v *served) RemoveHome(ctx context.Context, _ *wire.Conn,
	p *wire.SessionRemoveHomeParams) error {
	return v.do(ctx, owners.Own, light, func(ctx context.Context) error {
		return v.x.RemoveHome(ctx, p.Name)
	})
}
