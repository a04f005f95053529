package records_test

import (
	"context"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/server/records/recordstest"
)

// openPostgres opens a store in a schema of its own.
func openPostgres(t testing.TB, c *recordstest.Clock, o records.Options) *records.DB {
	t.Helper()
	s := pgtest.Shared(t)
	if o.Schema == "" {
		o.Schema = s.Schema(t.Name())
	}
	o.Now, o.Elapsed = c.Now, c.Elapsed
	if o.Silent == 0 {
		o.Silent = time.Hour // a test may wait for a processor
	}
	db, err := records.Open(context.Background(), s.URL, o)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestPostgres(t *testing.T) {
	recordstest.Run(t, func(t testing.TB, c *recordstest.Clock) records.Store {
		return openPostgres(t, c, records.Options{})
	})
}
