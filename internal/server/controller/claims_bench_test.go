package controller

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// BenchmarkClaims measures claims of 64 callers through the whole controller: its API with a token each,
// quota, placement, SQLite on the disk, audit, and the answer of one of 16 nodes in memory. Callers and
// nodes are in the same process, on the same processors.
func BenchmarkClaims(b *testing.B) {
	var names []string
	for i := range 16 {
		names = append(names, fmt.Sprint("n", i))
	}
	w := newWorld(b, names...)
	for _, n := range w.nodes {
		n.capacity = &v1.Machine{} // without a bound: what was placed counts for a while
		w.registerNode(n)
	}
	var all sync.WaitGroup
	var next atomic.Int64
	took := make([]time.Duration, b.N)
	used := processTime(b)
	b.ResetTimer()
	for i := range 64 {
		c := w.as(with(fmt.Sprint("t", i%4)))
		all.Go(func() {
			for n := next.Add(1) - 1; n < int64(b.N); n = next.Add(1) - 1 {
				began := time.Now()
				_, err := c.sandboxes.CreateSandbox(b.Context(), box(fmt.Sprint(n), 1))
				if err != nil {
					b.Error(err)
				}
				took[n] = time.Since(began)
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
	b.ReportMetric(quantile(took, 0.5), "p50-ms")
	b.ReportMetric(quantile(took, 0.99), "p99-ms")
	b.ReportMetric(float64(processTime(b)-used)/1e6/float64(b.N), "cpu-ms/op")
}
