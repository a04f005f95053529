package sim

import (
	"testing"
	"time"
)

// BenchmarkClaims is how many claims with all that belongs to them one processor simulates in a
// second, with 1,000 nodes: decisions, records and reports, without connections and disks.
func BenchmarkClaims(b *testing.B) {
	claims, events := 0, 0
	for b.Loop() {
		c := big(1000, 20_000)
		c.Every, c.Turns, c.Gone, c.Keep, c.Quiet = 0, 0, 0, 0, time.Minute
		r, err := Run(c)
		if err != nil {
			b.Fatal(err)
		}
		claims, events = claims+r.Claims, events+r.Events
	}
	b.ReportMetric(float64(claims)/b.Elapsed().Seconds(), "claims/s")
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
