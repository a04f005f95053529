package client_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"turnstone.dev/turnstone/client"
)

// BenchmarkExec runs true in a sandbox that is warm, on the server that the environment names. make
// bench ONLY=sdk runs it.
func BenchmarkExec(b *testing.B) {
	if os.Getenv("TURN_HOST") == "" {
		b.Skip("TURN_HOST names no server")
	}
	ctx := b.Context()
	c, err := client.New(ctx, client.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	sb, err := c.Sandbox(ctx, client.SandboxOptions{NoSession: true})
	if err != nil {
		b.Fatal(err)
	}
	var all []time.Duration
	run := func() {
		began := time.Now()
		if r, err := sb.Exec(ctx, []string{"true"}); err != nil || r.ExitCode != 0 {
			b.Fatal(r, err)
		}
		all = append(all, time.Since(began))
	}
	for range 5 { // to be warm
		run()
	}
	all = nil
	for b.Loop() {
		run()
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}
