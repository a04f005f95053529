// The virtual clock in memory. This file is added by Turnstone's build.

package kernel

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
)

const (
	// TurnstoneClockPrctl is the option of prctl(2) that returns the address of the virtual
	// monotonic time, in nanoseconds. The shell's tracer reads the time twice for each command,
	// and a system call for each would take longer than a builtin command.
	TurnstoneClockPrctl = 0x54757270

	// clockOffset is the place of the time in the page before the vDSO, behind gVisor's parameters.
	clockOffset = 2048
)

// A clockPage is the place in the page of the vDSO's parameters that shows the virtual time. The
// page stays allocated as long as the kernel. Programs cannot write to it.
type clockPage struct{ at safemem.Block }

// openClockPage returns the place in the page of params.
func openClockPage(params *VDSOParamPage) clockPage {
	page, err := params.access()
	if err != nil || page.Len() < clockOffset+8 {
		return clockPage{}
	}
	return clockPage{page.DropFirst(clockOffset).TakeFirst(8)}
}

// show writes the time.
func (c clockPage) show(now int64) {
	if c.at.Len() > 0 {
		_, _ = safemem.SwapUint64(c.at, uint64(now)) // an error leaves an old time in traces
	}
}

// ClockAddress returns the address of the virtual time in t's memory.
func (t *Task) ClockAddress() (hostarch.Addr, error) {
	d := t.deterministic()
	if d == nil || d.page.at.Len() == 0 {
		return 0, linuxerr.EINVAL // as of an unknown option
	}
	for _, e := range t.MemoryManager().Auxv() {
		if e.Key == linux.AT_SYSINFO_EHDR && e.Value > hostarch.PageSize {
			return e.Value - hostarch.PageSize + clockOffset, nil
		}
	}
	return 0, linuxerr.EINVAL
}
