package controller

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/quota"
)

// BenchmarkFlood measures the creations of one tenant, alone and beside 10,000 of another, at a node
// in memory: what the controller and its queue cost.
func BenchmarkFlood(b *testing.B) {
	w := newWorld(b, "n1")
	w.stop()
	w.quota = func(string) quota.Limits { return quota.Limits{Sandboxes: 50} }
	w.nodes[0].capacity = &v1.Machine{} // without a bound: what was placed counts for a while
	w.start()
	w.join(w.nodes[0])
	quiet, flood := w.as(with("quiet")), w.as(with("flood"))
	key := 0
	p99 := func() float64 {
		var all []time.Duration
		for range 100 {
			key++
			began := time.Now()
			made, err := quiet.sandboxes.CreateSandbox(b.Context(), box(fmt.Sprint("q", key), 1))
			must(b, err)
			all = append(all, time.Since(began))
			_, err = quiet.sandboxes.DeleteSandbox(b.Context(), ask(&v1.DeleteSandboxRequest{
				SandboxId: made.Msg.Sandbox.SandboxId}))
			must(b, err)
		}
		slices.Sort(all)
		return float64(all[98].Microseconds()) / 1000
	}
	for b.Loop() {
		alone := p99()
		var clients sync.WaitGroup
		next, end := make(chan int), make(chan bool)
		for range 20 {
			clients.Go(func() {
				for i := range next {
					_, _ = flood.sandboxes.CreateSandbox(b.Context(), box(fmt.Sprint("f", i), 1))
				}
			})
		}
		go func() {
			defer close(next)
			for i := range 10_000 {
				select {
				case next <- key*10_000 + i:
				case <-end:
					return
				}
			}
		}()
		beside := p99()
		close(end)
		clients.Wait()
		b.ReportMetric(alone, "alone-p99-ms")
		b.ReportMetric(beside, "beside-p99-ms")
		b.ReportMetric(beside/alone, "ratio")
	}
}
