// Pipes of a deterministic sandbox's agent. This file is added by Turnstone's build.

package pipe

import (
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/usermem"
)

// A writer is a task of a deterministic sandbox that writes to a pipe.
type writer interface {
	WrotePipe(n int64, waitsForAgent bool)
}

// turnstoneWritten is an ioctl(2) for pipes of a deterministic sandbox's agent: the number of bytes
// written to the pipe. What is still in the pipe depends on how fast the agent reads.
const turnstoneWritten = 0x54570001

func (p *Pipe) copyWritten(ctx context.Context, io usermem.IO, addr hostarch.Addr) error {
	if !p.OfAgent {
		return linuxerr.ENOTTY
	}
	p.mu.Lock()
	n := p.written
	p.mu.Unlock()
	_, err := primitive.CopyInt64Out(&usermem.IOCopyContext{IO: io, Ctx: ctx}, addr, n)
	return err
}
