// A limit of the host's processes that a sandbox may have. This file is added by
// Turnstone's build.

package sentrycmd

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// limitProcesses lets the host's kernel hold the spec's limit of processes, which is a
// control group's elsewhere: each address space in the sandbox is a process of the host,
// and root in the sandbox can leave the sandbox's own control groups. The limit is of
// this process's user in this process's user namespace; before Linux 5.14 it would be of
// the user on the whole host, and is left out.
func limitProcesses(spec *specs.Spec) error {
	if spec.Linux == nil || spec.Linux.Resources == nil || spec.Linux.Resources.Pids == nil || spec.Linux.Resources.Pids.Limit <= 0 {
		return nil
	}
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return err
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(host.Release[:]), "%d.%d", &major, &minor); err != nil || major < 5 || major == 5 && minor < 14 {
		return nil
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &now); err != nil {
		return err
	}
	most := min(uint64(spec.Linux.Resources.Pids.Limit), now.Max)
	return unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: most})
}
