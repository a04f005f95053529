package records_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/server/records/recordstest"
)

// BenchmarkCreators is callers that each create objects with keys one after the other, on real disks:
// the rate of all, and how long a creation takes at the 50th and 99th percentile.
func BenchmarkCreators(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("sqlite/%d", callers), func(b *testing.B) {
			db := open(b, filepath.Join(b.TempDir(), "server.db"), recordstest.NewClock())
			defer func() { _ = db.Close() }()
			creators(b, db, callers)
		})
	}
	s := pgtest.New(b)
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("postgres/%d", callers), func(b *testing.B) {
			db, err := records.Open(b.Context(), s.URL, records.Options{Schema: s.Schema(b.Name())})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			creators(b, db, callers)
		})
	}
}

func creators(b *testing.B, db *records.DB, callers int) {
	b.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	took := make([]time.Duration, b.N)
	b.ResetTimer()
	for range callers {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				k := &records.Key{Tenant: "a", Method: "m", Key: fmt.Sprint(i),
					Request: turnstone.DigestBytes(nil)}
				began := time.Now()
				if _, _, err := db.Create(b.Context(), k, object()); err != nil {
					b.Error(err)
				}
				took[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creations/s")
	b.ReportMetric(float64(took[b.N/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[b.N*99/100].Microseconds())/1000, "p99-ms")
}
