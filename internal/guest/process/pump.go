package process

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Watcher is called before and after each read of a process's outputs (1 or 2), so that it can
// compute how many of the written bytes are still in the pipe. Read is called after every Reading,
// with the number of bytes read.
type Watcher interface {
	Reading(stream int)
	Read(stream, n int)
}

type noWatcher struct{}

func (noWatcher) Reading(int)   {}
func (noWatcher) Read(int, int) {}

// A pump copies an output of a process to its log.
type pump struct {
	f        *os.File
	raw      syscall.RawConn
	log      *Log
	stream   int
	watch    Watcher
	terminal bool
}

// run copies until the output ends, or until the process has ended and the log contains the output
// of that moment. Later output of other processes is read and discarded, so that background
// processes neither block nor die of SIGPIPE. The process's end is signaled as a read deadline,
// which is set once.
func (p *pump) run() (ended bool) {
	for {
		buf := p.log.room()
		if buf == nil {
			return false // forgotten
		}
		n, err := p.read(buf, true)
		p.log.wrote(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = p.f.SetReadDeadline(time.Time{})
			return p.drain()
		}
		if n <= 0 {
			return true
		}
	}
}

// read reads once. It waits for data only if wait is true; otherwise it returns EAGAIN. At an end
// it returns 0.
func (p *pump) read(buf []byte, wait bool) (n int, err error) {
	rerr := p.raw.Read(func(fd uintptr) bool {
		for {
			p.watch.Reading(p.stream)
			n, err = syscall.Read(int(fd), buf)
			p.watch.Read(p.stream, max(0, n))
			if err != syscall.EINTR {
				break
			}
		}
		return err != syscall.EAGAIN || !wait
	})
	if rerr != nil {
		return 0, rerr
	}
	return max(0, n), err
}

// drain copies the current content of the output, without waiting for more: a background process
// may write forever. It reports the output's end.
func (p *pump) drain() (ended bool) {
	left := p.pending()
	for {
		buf := p.log.room()
		if buf == nil {
			return false
		}
		// With nothing left this read only distinguishes an end from an open pipe.
		n, err := p.read(buf[:max(1, min(len(buf), left))], false)
		p.log.wrote(n)
		left = max(0, left-n)
		switch {
		case err == syscall.EAGAIN:
			return false
		case n == 0:
			return true
		case left == 0 && !p.terminal:
			return p.atEnd()
		case left == 0:
			return false
		}
	}
}

// atEnd reports whether a drained pipe has no writer, by an event that poll always reports.
func (p *pump) atEnd() (ended bool) {
	_ = p.raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 0); n == 1 && err == nil {
			ended = fds[0].Revents&unix.POLLIN == 0 && fds[0].Revents&unix.POLLHUP != 0
		}
	})
	return ended
}

// pending returns how much to drain. A terminal does not report all of it, so it is drained until
// it is empty, up to the capacity of a pipe.
func (p *pump) pending() int {
	left := pipeSize
	if p.terminal {
		return left
	}
	_ = p.raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			left = n
		}
	})
	return left
}

// discard reads and discards data up to the output's end.
func (p *pump) discard() {
	buf := make([]byte, 16<<10)
	for {
		if n, err := p.read(buf, true); n <= 0 || err != nil {
			return
		}
	}
}
