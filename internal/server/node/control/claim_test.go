package control

import (
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pool"
)

// TestWarmMessage: GetNode answers each number of the pool as what it is.
func TestWarmMessage(t *testing.T) {
	m := warmMessage(WarmStats{Key: pool.Key{Tenant: "acme", Source: "base",
		Shape: turnstone.Shape{CPUs: 2, Memory: 256 << 20, Disk: 1 << 30}},
		Target: pool.Target{Min: 3, Max: 4}, Ready: 5, Making: 6, Waiting: 7,
		Counts: pool.Counts{Made: 8, Failed: 9, Claimed: 10, Died: 11, Evicted: 12}})
	if m.Tenant != "acme" || m.Template != "base" || m.Machine.Cpus != 2 ||
		m.Machine.Memory != 256<<20 || m.Machine.Disk != 1<<30 || m.Min != 3 || m.Max != 4 ||
		m.Ready != 5 || m.Making != 6 || m.Queued != 7 || m.Made != 8 || m.Failed != 9 ||
		m.Claimed != 10 || m.Died != 11 || m.Evicted != 12 {
		t.Errorf("%v", m)
	}
}

// TestCreationPhases: a phase says when it began, from the beginning of the creation on, and never
// before it.
func TestCreationPhases(t *testing.T) {
	began := time.Now()
	c := &creation{began: began}
	c.took("queue", began.Add(-time.Second), 2*time.Second)
	c.took("take", began.Add(time.Second), time.Minute)
	if len(c.phases) != 2 || c.phases[0].After.AsDuration() != 0 ||
		c.phases[1].After.AsDuration() != time.Second || c.phases[1].Took.AsDuration() != time.Minute {
		t.Errorf("%v", c.phases)
	}
	if all := c.LogValue().Group(); len(all) != 2 || all[1].Key != "take" {
		t.Errorf("%v", all)
	}
}
