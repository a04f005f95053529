// What a sandbox without a cgroup is told of its machine. This file is added by
// Turnstone's build.

package sandbox

import (
	"math"
	"os/exec"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// tellResources adds the number of CPUs that the spec's quota comes to, and returns the
// memory that the spec allows, at most mem. With cgroups both come from there; who
// ignores them limits a sandbox in other ways, and it should know its limits all the same.
func tellResources(cmd *exec.Cmd, spec *specs.Spec, mem uint64) uint64 {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return mem
	}
	if c := spec.Linux.Resources.CPU; c != nil && c.Quota != nil && c.Period != nil && *c.Quota > 0 && *c.Period > 0 {
		n := math.Ceil(float64(*c.Quota) / float64(*c.Period))
		cmd.Args = append(cmd.Args, "--cpu-num", strconv.Itoa(int(n)))
	}
	if m := spec.Linux.Resources.Memory; m != nil && m.Limit != nil && *m.Limit > 0 {
		mem = min(mem, uint64(*m.Limit))
		// Half of this is what a tmpfs takes when nothing is said of its size. The host's
		// memory, said before, is nothing that the sandbox may fill.
		cmd.Args = append(cmd.Args, "--total-host-memory", strconv.FormatUint(mem, 10))
	}
	return mem
}
