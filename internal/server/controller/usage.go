package controller

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/controller/usage"
	"turnstone.dev/turnstone/internal/server/records"
)

// maxBack bounds the spans that wait for a database that fails.
const maxBack = 100_000

// flushUsage records the usage until now.
func (c *Controller) flushUsage(ctx context.Context) error {
	spans := c.ledger.Take(time.Now())
	if len(spans) == 0 {
		return nil
	}
	err := c.o.Records.PutUsage(ctx, spans...)
	if turnstone.KindOf(err) == turnstone.KindInvalid && err != nil {
		// One span contradicts its record, such as after a restore of the database.
		err = nil
		for _, s := range spans {
			if e := c.o.Records.PutUsage(ctx, s); e != nil {
				c.log.Error("a span of usage cannot be recorded", "object", s.Object, "error", e)
			}
		}
	}
	if err != nil && len(spans) < maxBack {
		c.ledger.PutBack(spans) // a span may come twice: it only grows
	}
	return err
}

// restore makes the ledger from the records.
func (c *Controller) restore(ctx context.Context) error {
	tenants, err := c.o.Records.Tenants(ctx)
	if err != nil {
		return err
	}
	for _, t := range tenants {
		for kind, states := range map[records.Kind][]records.State{
			records.Sandbox: {records.Creating, records.Ready, records.Running},
			records.Turn:    {records.Reserved, records.Running},
			records.Session: {records.Kept}, records.Snapshot: {records.Kept}} {
			p := records.Page{Size: 100}
			for more := true; more; more = p.Token != "" {
				var all []records.Object
				all, p.Token, err = c.o.Records.List(ctx, t.Name,
					records.Filter{Kind: kind, States: states}, p)
				if err != nil {
					return err
				}
				for _, o := range all {
					c.ledger.Note(o)
				}
			}
		}
		now := time.Now()
		total, err := c.o.Records.Usage(ctx, t.Name, "", usage.Day(now), now)
		if err != nil {
			return err
		}
		c.ledger.SetSent(t.Name, uint64(max(total.Used.Sent, 0)))
	}
	return nil
}
