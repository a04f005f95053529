// System calls of deterministic sandboxes. This file is added by Turnstone's build.

package linux

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// beginDeterministic makes the sandbox deterministic. See kernel.TurnstonePrctl.
func beginDeterministic(t *kernel.Task, addr hostarch.Addr) error {
	var arg [kernel.TurnstoneSize]byte
	if _, err := t.CopyInBytes(addr, arg[:]); err != nil {
		return err
	}
	return t.BeginDeterministic([32]byte(arg[:]), int64(binary.NativeEndian.Uint64(arg[32:])))
}

// markPipe records that the agent of a deterministic sandbox made a pipe.
func markPipe(t *kernel.Task, r *vfs.FileDescription, err error) {
	if err == nil && t.IsAgent() {
		r.Impl().(*pipe.VFSPipeFD).Pipe().OfAgent = true
	}
}
