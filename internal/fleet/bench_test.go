package fleet

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/bench/size"
)

// BenchmarkPlace is the decision about one claim and its end, in a fleet of many nodes with as many
// sandboxes that wait.
func BenchmarkPlace(b *testing.B) {
	for _, nodes := range []int{10, 1000, 10_000} {
		nodes = size.OfProgram().Of(nodes)
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			f := New(Options{Times: testTimes, Version: "2"})
			r := roomy()
			r.Capacity = Resources{CPUs: 1 << 30, Memory: 1 << 60, Disk: 1 << 60}
			r.Warm = map[Kind]int{base: 1}
			fill(f, nodes, r)
			need := one("x")
			need.Kind, need.Template = base, "base"
			for b.Loop() {
				room, v := f.Place(0, need)
				if v != Placed {
					b.Fatal(v)
				}
				f.Drop(room)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// BenchmarkFull is the decision when no node has room: all nodes are looked at.
func BenchmarkFull(b *testing.B) {
	f := New(Options{Times: testTimes})
	r := roomy()
	r.Used = r.Capacity
	fill(f, size.OfProgram().Of(1000), r)
	for b.Loop() {
		if _, v := f.Place(0, one("x")); v != Full {
			b.Fatal(v)
		}
	}
}

// BenchmarkTick divides ten pools among 1,000 nodes of which one comes and goes.
func BenchmarkTick(b *testing.B) {
	var pools []Pool
	for i := range 10 {
		pools = append(pools, Pool{Kind: Kind{Tenant: fmt.Sprint(i)}, Min: 1000, Max: 1000})
	}
	p, nodes := NewPools(pools, nil), names(size.OfProgram().Of(1000))
	now := time.Duration(0)
	for b.Loop() {
		now += time.Second
		p.Tick(now, time.Second, nodes[int(now/time.Second)%2:])
	}
}

// BenchmarkMemory is the memory of 1,000 nodes with reservations for 100,000 sandboxes.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		f := New(Options{Times: testTimes})
		r := roomy()
		r.Capacity = Resources{}
		nodes := size.OfProgram().Of(1000)
		fill(f, nodes, r)
		for i := range size.OfProgram().Of(100_000) {
			need := one("x")
			need.Node = fmt.Sprintf("n%04d", i%nodes)
			if _, v := f.Place(0, need); v != Placed {
				b.Fatal(v)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		runtime.KeepAlive(f)
	}
}
