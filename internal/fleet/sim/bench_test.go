package sim

import (
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/bench/size"
)

// BenchmarkClaims is how many claims with all that belongs to them one processor simulates in a
// second, with 1,000 nodes: decisions, records and reports, without connections and disks.
func BenchmarkClaims(b *testing.B) {
	claims, events := 0, 0
	for b.Loop() {
		// With fewer nodes the pools take longer than a minute to settle.
		c := big(max(100, size.OfProgram().Of(1000)), max(2000, size.OfProgram().Of(20_000)))
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
