package sweeps

import (
	"context"
	"database/sql"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
)

// Pin keeps, when tx ends, a tree that a machine needs, such as that of a template, from deletion by all
// machines. The caller has found all of it in an open batch, and has called Check in tx.
func (s *Sweeps) Pin(ctx context.Context, tx *sql.Tx, machine string, tree turnstone.TreeRef) error {
	_, err := tx.ExecContext(ctx,
		"INSERT INTO pins (machine, root, hash) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
		machine, string(tree.Root), string(tree.Hash))
	return err
}

// Pinned reports whether a machine has pinned a tree.
func (s *Sweeps) Pinned(ctx context.Context, machine string, tree turnstone.TreeRef) (is bool,
	err error) {
	err = s.pool.QueryRowContext(ctx,
		"SELECT EXISTS (SELECT 1 FROM pins WHERE machine = $1 AND root = $2)", machine,
		string(tree.Root)).Scan(&is)
	return is, pg.Error(op, "pin", err)
}

// Unpin removes the pins of a machine, except those of the trees in needed.
func (s *Sweeps) Unpin(ctx context.Context, machine string, needed []turnstone.TreeRef) error {
	roots := []string{}
	for _, t := range needed {
		roots = append(roots, string(t.Root))
	}
	_, err := s.pool.ExecContext(ctx, "DELETE FROM pins WHERE machine = $1 AND root <> ALL($2)", machine,
		roots)
	return pg.Error(op, "pin", err)
}

// Pins returns the trees that machines have pinned.
func (s *Sweeps) Pins(ctx context.Context) ([]turnstone.TreeRef, error) {
	rows, err := s.pool.QueryContext(ctx, "SELECT DISTINCT root, hash FROM pins ORDER BY root")
	if err != nil {
		return nil, pg.Error(op, "pin", err)
	}
	defer func() { _ = rows.Close() }()
	var all []turnstone.TreeRef
	for rows.Next() {
		var t turnstone.TreeRef
		if err := rows.Scan(&t.Root, &t.Hash); err != nil {
			return nil, pg.Error(op, "pin", err)
		}
		all = append(all, t)
	}
	return all, pg.Error(op, "pin", rows.Err())
}
