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
		!slices.Contains([]NodeState{NodeUp, NodeDraining, NodeLost}, n.State) {
		return invalid("node", "the node", "%.140q cannot be stored", n.Name)
	}
	return db.write(ctx, db.durable, "node", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)",
			n.Name, n.State, n.Address, blob(n.Detail), unixNano(n.Seen))
		return err
	})
}

// Nodes implements Store.
func (db *DB) Nodes(ctx context.Context) ([]Node, error) {
	all, err := query(ctx, db.readers, func(rows *sql.Rows) (n Node, err error) {
		var seen int64
		err = rows.Scan(&n.Name, &n.State, &n.Address, &n.Detail, &seen)
		n.Seen = fromUnixNano(seen)
		if len(n.Detail) == 0 {
			n.Detail = nil
		}
		return n, err
	}, "SELECT name, state, address, detail, seen FROM nodes ORDER BY name")
	return all, dbError("nodes", db.path, err)
}

// PutUsage implements Store.
func (db *DB) PutUsage(ctx context.Context, spans ...Usage) error {
	for i := range spans {
		if err := spans[i].check(); err != nil {
			return err
		}
	}
	return db.write(ctx, db.durable, "usage", func(tx *sql.Tx) error {
		for _, u := range spans {
			done, err := tx.ExecContext(ctx, `INSERT INTO usage (object, part, tenant, kind, node,
				since, until, cpus, memory, session, cpu, sent, received)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (object, part) DO UPDATE SET until = max(until, excluded.until),
					session = CASE excluded.session WHEN '' THEN session ELSE excluded.session END,
					cpu = max(cpu, excluded.cpu), sent = max(sent, excluded.sent),
					received = max(received, excluded.received)
					WHERE tenant = excluded.tenant AND kind = excluded.kind
						AND since = excluded.since AND cpus = excluded.cpus
						AND memory = excluded.memory`,
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
	err = db.readers.QueryRowContext(ctx, `WITH parts AS (SELECT *,
			(min(until, ?2) - max(since, ?1)) / 1e9 AS seconds, -- between the times
			CASE until WHEN since THEN 1.0
				ELSE (min(until, ?2) - max(since, ?1)) / CAST(until - since AS REAL) END AS share
			FROM usage WHERE tenant = ?3 AND until >= ?1 AND since < ?2 AND (?4 = '' OR session = ?4))
		SELECT
		COALESCE(sum(kind = 'turn' AND part = 0 AND since >= ?1), 0),
		COALESCE(sum(kind = 'sandbox' AND part = 0 AND since >= ?1), 0),
		CAST(round(total(seconds * cpus)) AS INTEGER),
		CAST(round(total(seconds * memory / 1048576)) AS INTEGER),
		CAST(round(total(seconds * (kind = 'sandbox'))) AS INTEGER),
		CAST(round(total(seconds * (kind = 'turn'))) AS INTEGER),
		CAST(round(total(share * cpu)) AS INTEGER), CAST(round(total(share * sent)) AS INTEGER),
		CAST(round(total(share * received)) AS INTEGER)
		FROM parts`, from, to, tenant, session).
		Scan(&t.Turns, &t.Sandboxes, &t.CPUSeconds, &t.MemorySeconds, &t.SandboxSeconds,
			&t.TurnSeconds, &t.Used.CPU, &t.Used.Sent, &t.Used.Received)
	return t, dbError("usage", db.path, err)
}
