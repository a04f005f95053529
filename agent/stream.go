package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	wire "turnstone.dev/turnstone/oldwire"
)

// output is Process.output: it sends what a process writes until the process
// ends. What others still write to the same pipe after that is read and thrown
// away, so that background processes neither block nor die of SIGPIPE.
func (t *procTable) output(ctx context.Context, sp wire.StreamParams, c *wire.Call) {
	p := t.get(sp.ID)
	if sp.FD < 1 || sp.FD > 2 || p.taken[sp.FD].Swap(true) {
		return
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
		return
	}
	t.forget(p)
	if p.failed {
		return
	}
	f := p.out[sp.FD]
	buf := t.a.buffers.get()
	eof := pump(f, c, buf)
	t.a.buffers.put(buf)
	if eof {
		_ = f.Close()
		return
	}
	go t.discard(f)
}

// pump copies f to w until f ends (true) or the process has ended and w has what
// f held at that moment (false). The process's end shows as a read deadline,
// which is set once. A w that fails loses the rest.
func pump(f *os.File, w io.Writer, buf []byte) bool {
	for {
		n, err := f.Read(buf)
		if n > 0 && w != nil {
			if _, werr := w.Write(buf[:n]); werr != nil {
				w = nil
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = f.SetReadDeadline(time.Time{})
			return drain(f, w, buf)
		}
		if err != nil {
			return true
		}
	}
}

// drain copies what f holds now, without waiting for more. It reports whether f
// has ended.
func drain(f *os.File, w io.Writer, buf []byte) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	left, eof := -1, false
	for left != 0 && !eof {
		var n int
		rerr := raw.Read(func(fd uintptr) bool {
			if left < 0 {
				// Only what is there now: a background process may write forever.
				if left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); err != nil {
					left = pipeSize
				}
			}
			// With nothing left this read only tells an end from an open pipe.
			n, err = syscall.Read(int(fd), buf[:max(1, min(len(buf), left))])
			return true
		})
		if rerr != nil || (n <= 0 && err != syscall.EINTR && err != syscall.EAGAIN) {
			eof = true
		}
		if n > 0 && w != nil {
			if _, werr := w.Write(buf[:n]); werr != nil {
				w = nil
			}
		}
		if n <= 0 && err == syscall.EAGAIN {
			return false
		}
		left = max(0, left-max(0, n))
	}
	return eof
}

// discard reads f to its end and throws away what comes.
func (t *procTable) discard(f *os.File) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		_ = f.Close()
		return
	}
	t.pipes[f] = struct{}{}
	t.mu.Unlock()
	buf := make([]byte, 16<<10)
	for {
		if _, err := f.Read(buf); err != nil {
			break
		}
	}
	t.mu.Lock()
	delete(t.pipes, f)
	t.mu.Unlock()
	_ = f.Close()
}

// stdin is Process.stdin: it feeds a process until the caller closes its half of
// the stream, or the process has ended.
func (t *procTable) stdin(ctx context.Context, sp wire.StreamParams, c *wire.Call) {
	p := t.get(sp.ID)
	select {
	case <-p.ready:
	case <-ctx.Done():
		return
	}
	if p.failed || p.stdin == nil {
		return
	}
	defer func() { _ = p.stdin.Close() }()
	buf := t.a.buffers.get()
	defer t.a.buffers.put(buf)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if _, werr := p.stdin.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
