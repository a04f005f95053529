package service

import (
	"testing"

	"github.com/containerd/cgroups/v3"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"

	"turnstone.dev/turnstone/shim/guest"
)

// TestMemoryLeft: containerd takes a container's memory from its limit for what is available, unless the limit is one
// that the kernel has for none.
func TestMemoryLeft(t *testing.T) {
	const used = 5 << 20
	available := func(limit uint64) uint64 {
		if limit > 1<<62 {
			return 0
		}
		return limit - used
	}
	for limit, want := range map[uint64]uint64{0: 0, 64 << 20: 59 << 20} {
		for _, mode := range []cgroups.CGMode{cgroups.Unified, cgroups.Legacy, cgroups.Hybrid} {
			m, err := metricsIn(guest.Stats{Memory: used, Limit: limit}, mode)
			if err != nil {
				t.Fatal(err)
			}
			var got uint64
			if mode == cgroups.Unified {
				x := &v2.Metrics{}
				err = m.UnmarshalTo(x)
				got = x.GetMemory().GetUsageLimit()
			} else {
				x := &v1.Metrics{}
				err = m.UnmarshalTo(x)
				got = x.GetMemory().GetUsage().GetLimit()
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := available(got); got != want {
				t.Errorf("limit %d, mode %v: %d bytes are available, want %d", limit, mode, got, want)
			}
		}
	}
}
