package records

import (
	"context"
	"database/sql"
	"slices"
	"time"
)

// PutNode implements Store.
func (db *DB) PutNode(ctx context.Context, n Node) error {
	if !isID(n.Name) || !isText(n.Address) || len(n.Detail) > maxNode || !isTime(n.Seen) ||
		!slices.Contains([]NodeState{NodeUp, NodeDraining, NodeLost, NodeGone}, n.State) {
		return invalid("node", "the node", "%.140q cannot be stored", n.Name)
	}
	return db.write(ctx, false, "node", func(ctx context.Context, tx *transaction) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO nodes VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET state = excluded.state, address = excluded.address,
				detail = excluded.detail, seen = excluded.seen`,
			n.Name, n.State, n.Address, blob(n.Detail), unixNano(n.Seen))
		return err
	})
}

// Nodes implements Store.
func (db *DB) Nodes(ctx context.Context) ([]Node, error) {
	all, err := query(ctx, db.reads, func(rows *sql.Rows) (n Node, err error) {
		var seen int64
		err = rows.Scan(&n.Name, &n.State, &n.Address, &n.Detail, &seen)
		n.Seen = fromUnixNano(seen)
		if len(n.Detail) == 0 {
			n.Detail = nil
		}
		return n, err
	}, "SELECT name, state, address, detail, seen FROM nodes ORDER BY name")
	return all, db.fail("nodes", err)
}

// PutUsage implements Store.
func (db *DB) PutUsage(ctx context.Context, spans ...Usage) error {
	for i := range spans {
		if err := spans[i].check(); err != nil {
			return err
		}
	}
	return db.write(ctx, false, "usage", func(ctx context.Context, tx *transaction) error {
		for _, u := range spans {
			done, err := tx.ExecContext(ctx, `INSERT INTO usage (object, part, tenant, kind, node,
				since, until, cpus, memory, session, cpu, sent, received)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (object, part) DO UPDATE SET
					until = {max}(usage.until, excluded.until),
					session = CASE excluded.session WHEN '' THEN usage.session
						ELSE excluded.session END,
					cpu = {max}(usage.cpu, excluded.cpu), sent = {max}(usage.sent, excluded.sent),
					received = {max}(usage.received, excluded.received)
					WHERE usage.tenant = excluded.tenant AND usage.kind = excluded.kind
						AND usage.since = excluded.since AND usage.cpus = excluded.cpus
						AND usage.memory = excluded.memory`,
				u.Object, u.Part, u.Tenant, u.Kind, u.Node, unixNano(u.From), unixNano(u.To),
				u.CPUs, int64(u.Memory), u.Session, int64(u.Used.CPU), int64(u.Used.Sent),
				int64(u.Used.Received))
			if err != nil {
				return err
			}
			if n, err := done.RowsAffected(); err != nil {
				return err
			} else if n == 0 {
				return invalid("usage", u.Object, "part %d is stored with other values", u.Part).
					WithHint("begin a new part when the machine's size changes")
			}
		}
		return nil
	})
}

// Usage implements Store.
func (db *DB) Usage(ctx context.Context, tenant, session string, since, until time.Time) (t Total,
	err error) {
	if !isTime(since) || !isTime(until) || until.Before(since) {
		return t, invalid("usage", "the time", "is out of range")
	}
	from, to := unixNano(since), unixNano(until)
	// As floating point: ns of many machines would not fit.
	all, err := query(ctx, db.reads, func(rows *sql.Rows) (t Total, err error) {
		return t, rows.Scan(&t.Turns, &t.Sandboxes, &t.CPUSeconds, &t.MemorySeconds,
			&t.SandboxSeconds, &t.TurnSeconds, &t.Used.CPU, &t.Used.Sent, &t.Used.Received)
	}, `WITH parts AS (SELECT *,
			({min}(until, ?2) - {max}(since, ?1)) / 1e9 AS seconds, -- between the times
			CASE WHEN until = since THEN 1.0 ELSE ({min}(until, ?2) - {max}(since, ?1))
				/ CAST(until - since AS DOUBLE PRECISION) END AS share,
			CASE WHEN since >= ?1 AND part = 0 THEN kind ELSE '' END AS began
			FROM usage WHERE tenant = ?3 AND until >= ?1 AND since < ?2 AND (?4 = '' OR session = ?4))
		SELECT
		count(CASE WHEN began = 'turn' THEN 1 END), count(CASE WHEN began = 'sandbox' THEN 1 END),`+
		rounded("seconds * cpus")+", "+rounded("seconds * memory / 1048576")+", "+
		rounded("CASE kind WHEN 'sandbox' THEN seconds ELSE 0 END")+", "+
		rounded("CASE kind WHEN 'turn' THEN seconds ELSE 0 END")+", "+
		rounded("share * cpu")+", "+rounded("share * sent")+", "+rounded("share * received")+
		" FROM parts", from, to, tenant, session)
	if err != nil || len(all) == 0 {
		return t, db.fail("usage", err)
	}
	return all[0], nil
}

// rounded is the sum of an expression as a whole number.
func rounded(expression string) string {
	return "CAST(round(COALESCE(sum(" + expression + "), 0)) AS BIGINT)"
}
