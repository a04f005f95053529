package usage

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/records"
)

// scan is Standing without sums.
func (l *Ledger) scan(tenant string) (s Standing) {
	for r, e := range l.live {
		if e.tenant == tenant {
			s.add(r.Kind, e)
		}
	}
	return s
}

// TestSums: whatever happens to objects, in any order, what tenants use is the sum of what is there.
func TestSums(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l Ledger
		for step := range 400 {
			n := r.IntN(30)
			o := records.Object{Tenant: fmt.Sprint("t", n%3), Node: "n", ID: fmt.Sprint(n), Created: time.Now()}
			o.Kind = []records.Kind{records.Sandbox, records.Turn, records.Session, records.Snapshot}[n%4]
			size := uint64(1 + r.IntN(8))
			switch {
			case r.IntN(4) == 0:
				l.Plan(o.Tenant, RefOf(o), turnstone.Machine{CPUs: int(size), Memory: turnstone.Bytes(size << 20)})
			case r.IntN(6) == 0:
				l.Drop(RefOf(o))
			default:
				l.Note(random(t, r, o, size))
			}
			for i := range 3 {
				tenant := fmt.Sprint("t", i)
				if got, want := l.Standing(tenant), l.scan(tenant); got != want {
					t.Fatalf("seed %d, step %d: %+v, not %+v", seed, step, got, want)
				}
			}
		}
	}
}

// random gives an object a state and what its node says.
func random(t *testing.T, r *rand.Rand, o records.Object, size uint64) records.Object {
	var detail proto.Message
	switch o.Kind {
	case records.Sandbox:
		o.State = []records.State{records.Creating, records.Ready, records.Running, records.Stopped}[r.IntN(4)]
		detail = &v1.Sandbox{Machine: &v1.Machine{Cpus: uint32(size), Memory: size, Disk: 2 * size}}
	case records.Turn:
		o.State = []records.State{records.Reserved, records.Running, records.Done}[r.IntN(3)]
		o.Labels = map[string]string{message.LabelCPUs: fmt.Sprint(size), message.LabelMemory: fmt.Sprint(size)}
	case records.Session:
		o.State, detail = records.Kept, &v1.Session{Size: size}
	case records.Snapshot:
		o.State, detail = []records.State{records.Kept, records.Removed}[r.IntN(2)], &v1.Snapshot{Size: size}
	}
	if detail != nil && r.IntN(3) > 0 {
		var err error
		if o.Detail, err = proto.Marshal(detail); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// BenchmarkStanding is what a check of a quota reads, beside 100,000 sandboxes of the tenant.
func BenchmarkStanding(b *testing.B) {
	var l Ledger
	for i := range 100_000 {
		l.Plan("t", Ref{records.Sandbox, fmt.Sprint(i)}, turnstone.Machine{CPUs: 1})
	}
	for b.Loop() {
		l.Standing("t")
	}
}
