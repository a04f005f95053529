package service

import (
	"math"
	"time"

	"github.com/containerd/cgroups/v3"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/guest"
)

// noLimit is what control groups say of memory without a limit: the largest number, in version 1 that of whole pages
// below the largest signed one. containerd computes what is left of the limit, and takes 0 for a limit.
func noLimit(mode cgroups.CGMode) uint64 {
	if mode == cgroups.Unified {
		return math.MaxUint64
	}
	return math.MaxInt64 &^ (1<<12 - 1)
}

// metrics returns what a container uses in the form that containerd expects on this host.
func metrics(s guest.Stats) (*anypb.Any, error) { return metricsIn(s, cgroups.Mode()) }

func metricsIn(s guest.Stats, mode cgroups.CGMode) (*anypb.Any, error) {
	if s.Limit == 0 {
		s.Limit = noLimit(mode)
	}
	if mode == cgroups.Unified {
		return typeurl.MarshalAnyToProto(&v2.Metrics{
			CPU:    &v2.CPUStat{UsageUsec: s.CPU / 1000},
			Memory: &v2.MemoryStat{Usage: s.Memory, UsageLimit: s.Limit},
			Pids:   &v2.PidsStat{Current: s.PIDs}})
	}
	return typeurl.MarshalAnyToProto(&v1.Metrics{
		CPU: &v1.CPUStat{Usage: &v1.CPUUsage{Total: s.CPU}},
		Memory: &v1.MemoryStat{Usage: &v1.MemoryEntry{Usage: s.Memory, Limit: s.Limit},
			TotalInactiveFile: 0},
		Pids: &v1.PidsStat{Current: s.PIDs}})
}

// metricsOf returns what a sandbox has used.
func metricsOf(u turnstone.Used) (*anypb.Any, error) {
	return metrics(guest.Stats{CPU: uint64(time.Duration(u.CPU))})
}
