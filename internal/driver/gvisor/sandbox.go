package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

var (
	_ substrate.Sandbox     = (*sandbox)(nil)
	_ substrate.Pauser      = (*sandbox)(nil)
	_ substrate.Snapshotter = (*sandbox)(nil)
)

// scratchName is what the agent calls the file system that takes the writes.
const scratchName = "scratch"

// A sandbox is one running runsc with the process that it has started.
type sandbox struct {
	substrate *Substrate
	id        turnstone.SandboxID
	memory    turnstone.Bytes // that its processes may take
	limit     atomic.Int64    // bytes of the host's memory with which it is ended
	disk      atomic.Int64    // the same of its disk
	dir       string          // config.json, runsc's state, and as long as the sandbox starts the file of its scratch
	lock      *statedir.Lock
	process   *os.Process // runsc
	agent     *agentPipe
	console   tail
	spoke     atomic.Bool   // the agent has said something
	running   chan struct{} // closed when process is set
	ready     chan struct{} // closed when the agent has said on the console that it is ready
	silent    chan struct{} // closed when nobody holds the console any more
	done      chan struct{}
	from      identity // what it was started from, for Snapshot
	layers    []string
	snapshots sync.Mutex // one snapshot at a time

	mu     sync.Mutex
	paused bool
	closed bool
	cause  error // why we have ended it
	err    error
}

// folders begins the names of the folders of sandboxes below "sandboxes".
const folders = "gvisor-"

// newSandbox makes a sandbox's folder, which is locked as long as its process lives.
func (s *Substrate) newSandbox(ctx context.Context, shape turnstone.Shape) (*sandbox, error) {
	base, err := s.home.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	sweep(base)
	v := &sandbox{substrate: s, id: turnstone.NewSandboxID(), memory: shape.Memory, running: make(chan struct{}),
		ready: make(chan struct{}), silent: make(chan struct{}), done: make(chan struct{})}
	v.console.limit = 16 << 10
	v.limit.Store(hardLimit(shape))
	v.disk.Store(diskLimit(shape))
	v.dir = filepath.Join(base, folders+string(v.id))
	// The lock is beside the folder and there before it: a folder whose lock is free has
	// nobody any more.
	if v.lock, err = statedir.Acquire(ctx, v.dir+".lock", nil); err != nil {
		return nil, err
	}
	if err := os.Mkdir(v.dir, 0o700); err != nil {
		v.remove()
		return nil, err
	}
	return v, nil
}

// remove removes the sandbox's folder.
func (v *sandbox) remove() {
	_ = os.RemoveAll(v.dir)
	_ = os.Remove(v.dir + ".lock")
	v.lock.Release()
}

// sweep removes the folders of sandboxes whose process was killed before it could.
func sweep(base string) {
	locks, _ := filepath.Glob(filepath.Join(base, folders+"*.lock"))
	for _, path := range locks {
		lock, err := statedir.TryAcquire(path)
		if lock == nil || err != nil {
			continue
		}
		_ = os.RemoveAll(path[:len(path)-len(".lock")])
		_ = os.Remove(path)
		lock.Release()
	}
}

func (v *sandbox) ID() turnstone.SandboxID   { return v.id }
func (v *sandbox) Agent() io.ReadWriteCloser { return v.agent }
func (v *sandbox) Scratch() string           { return scratchName }
func (v *sandbox) Done() <-chan struct{}     { return v.done }

// Err implements substrate.Sandbox.
func (v *sandbox) Err() error {
	select {
	case <-v.done:
	default:
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// Close kills runsc, with which the sandbox's process dies.
func (v *sandbox) Close() error {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	_ = v.process.Kill()
	<-v.done
	return nil
}

// stop ends the sandbox for the given reason.
func (v *sandbox) stop(cause error) {
	v.mu.Lock()
	if v.cause == nil {
		v.cause = cause
	}
	v.mu.Unlock()
	_ = v.process.Kill()
}

// Pause implements substrate.Pauser.
func (v *sandbox) Pause(ctx context.Context) error {
	return v.setPaused(ctx, "pause", true)
}

// Resume implements substrate.Pauser.
func (v *sandbox) Resume(ctx context.Context) error {
	return v.setPaused(ctx, "resume", false)
}

func (v *sandbox) setPaused(ctx context.Context, verb string, paused bool) error {
	v.snapshots.Lock()
	defer v.snapshots.Unlock()
	if v.paused == paused {
		return nil
	}
	if err := v.control(ctx, verb, string(v.id)); err != nil {
		return v.failed(turnstone.Op("gvisor."+verb), err)
	}
	v.paused = paused
	return nil
}

// failed prefers the sandbox's own word on why it ended to err.
func (v *sandbox) failed(op turnstone.Op, err error) error {
	select {
	case <-v.done:
		if v.Err() != nil {
			return v.Err()
		}
	case <-time.After(100 * time.Millisecond):
	}
	return v.substrate.wrap(op, err)
}

// wait blocks until the agent is ready; the sandbox's end or ctx's end is an error.
func (v *sandbox) wait(ctx context.Context, limit time.Duration) error {
	timeout, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-v.ready:
		return nil
	case <-v.done:
		if err := v.Err(); err != nil {
			return err
		}
		return ctx.Err()
	case <-timeout.Done():
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("the agent did not start within %s; the console ends: %q", limit, printable(lastLine(v.console.String())))
	}
}

// agentPipe is the byte stream to the agent: two pipes.
type agentPipe struct {
	v    *sandbox
	r, w *os.File
	once sync.Once
}

// Read implements io.Reader.
func (p *agentPipe) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 && !p.v.spoke.Load() {
		p.v.started()
	}
	return n, err
}

// Write implements io.Writer.
func (p *agentPipe) Write(b []byte) (int, error) { return p.w.Write(b) }

// SetDeadline bounds reads and writes, also those that are under way: a link ends so.
func (p *agentPipe) SetDeadline(t time.Time) error {
	return errors.Join(p.r.SetDeadline(t), p.w.SetDeadline(t))
}

// Close implements io.Closer.
func (p *agentPipe) Close() error {
	p.end()
	return nil
}

func (p *agentPipe) end() {
	p.once.Do(func() { _, _ = p.r.Close(), p.w.Close() })
}

// started is called when the agent has spoken: everything is open by then. The file
// with what the sandbox writes has no name from now on, and is gone with it.
func (v *sandbox) started() {
	if v.spoke.Swap(true) {
		return
	}
	names, _ := filepath.Glob(filepath.Join(v.dir, storePrefix+"*"))
	for _, name := range names {
		_ = os.Remove(name)
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	limit int
	mu    sync.Mutex
	buf   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
