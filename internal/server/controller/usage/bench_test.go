package usage

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/server/records"
)

// BenchmarkLedger is the memory that a controller has for 100,000 sandboxes beside its fleet.
func BenchmarkLedger(b *testing.B) {
	detail, err := proto.Marshal(&v1.Sandbox{Machine: &v1.Machine{Cpus: 1, Memory: 1 << 30}})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		l := &Ledger{}
		for i := range size.OfProgram().Of(100_000) {
			o := records.Object{Kind: records.Sandbox, ID: string(turnstone.NewSandboxID()),
				Tenant: fmt.Sprint("t", i%100), Node: fmt.Sprint("n", i%1000), State: records.Ready,
				Session: string(turnstone.NewSessionID()), Detail: detail, Created: time.Now()}
			l.Plan(o.Tenant, RefOf(o), turnstone.Machine{CPUs: 1, Memory: 1 << 30})
			l.Note(o)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		runtime.KeepAlive(l)
	}
}
