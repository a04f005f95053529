package machine

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pipes is the byte stream to the host of a gVisor sandbox.
//
// A restore replaces the pipes, which would invalidate the state that Go's poller has of a
// descriptor. So a read blocks a thread until the host has sent something on a link, and only then
// uses the poller, with a descriptor of its own, until the link's end. It matters which: the agent
// has one processor, as its sandbox has one CPU, and a thread that blocks keeps the processor from
// the goroutines that could run until the runtime's monitor notices. In gVisor that takes a
// millisecond or more for each command.
type pipes struct {
	in, out int
	begun   bool // the host has sent data; used only by the single reader
	linked  atomic.Bool
	polled  atomic.Pointer[os.File] // of in, with the poller; nil: reads block
}

// Linked implements wire.Linker. No read is in progress.
func (p *pipes) Linked(on bool) {
	p.linked.Store(on)
	if f := p.polled.Swap(nil); f != nil {
		_ = f.Close()
		_ = unix.SetNonblock(p.in, false) // it shared its state with f
	}
}

// poll makes later reads use the poller. If that is not possible they block.
func (p *pipes) poll() {
	if !p.linked.Load() {
		return
	}
	fd, err := unix.FcntlInt(uintptr(p.in), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return
	}
	f := os.NewFile(uintptr(fd), "host")
	if err := f.SetReadDeadline(time.Time{}); err != nil { // the poller does not take it
		_ = f.Close()
		return
	}
	p.polled.Store(f)
}

// Read implements io.Reader. Before the host's first byte, an end of file only means that the host
// is not connected yet.
func (p *pipes) Read(b []byte) (int, error) {
	if f := p.polled.Load(); f != nil {
		return f.Read(b)
	}
	for len(b) > 0 {
		n, err := unix.Read(p.in, b)
		switch {
		case n > 0:
			p.begun = true
			p.poll()
			return n, nil
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			waitPipe(p.in, unix.POLLIN)
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case p.begun:
			return 0, io.EOF
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
	return 0, nil
}

// Write implements io.Writer.
func (p *pipes) Write(b []byte) (done int, err error) {
	for done < len(b) {
		n, err := unix.Write(p.out, b[done:])
		switch {
		case n > 0:
			done += n
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			waitPipe(p.out, unix.POLLOUT)
		case err != nil:
			return done, os.NewSyscallError("write", err)
		}
	}
	return done, nil
}

// Close implements io.Closer. It does not interrupt a read or write in progress.
func (p *pipes) Close() error { return errors.Join(unix.Close(p.in), unix.Close(p.out)) }

// waitPipe waits for one end of a pipe, for a limited time.
func waitPipe(fd int, events int16) {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 1000)
}
