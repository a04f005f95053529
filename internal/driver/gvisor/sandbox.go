package gvisor

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

var (
	_ substrate.Sandbox     = (*sandbox)(nil)
	_ substrate.Pauser      = (*sandbox)(nil)
	_ substrate.Snapshotter = (*sandbox)(nil)
	_ substrate.Mounter     = (*sandbox)(nil)
)

// scratchName is the agent's name of the file system that stores the writes.
const scratchName = "scratch"

// A sandbox is a running runsc with the process that it has started.
type sandbox struct {
	*kit.Process // runsc
	substrate    *Substrate
	memory       turnstone.Bytes // limit of its processes' memory
	limit        atomic.Int64    // bytes of the host's memory at which the sandbox is ended
	disk         atomic.Int64    // the same for its disk
	// config.json, runsc's state, and during the start the scratch file
	dir       string
	lock      *statedir.Lock
	agent     *agentPipe
	spoke     atomic.Bool   // the agent has sent something
	silent    chan struct{} // closed when the console has no writer left
	from      identity      // identity of its start, for Snapshot
	layers    []string
	snapshots sync.Mutex // one snapshot at a time
	paused    bool       // protected by snapshots
}

// advice is the hint for causes that the driver does not know.
const advice = "run `turn doctor`"

// folders begins the names of the folders of sandboxes below "sandboxes".
const folders = "gvisor-"

// newSandbox creates a sandbox's folder, which is locked as long as its process lives.
func (s *Substrate) newSandbox(ctx context.Context, shape turnstone.Shape) (*sandbox, error) {
	base, err := s.home.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	sweep(base)
	v := &sandbox{Process: kit.New(turnstone.NewSandboxID(), console.New(), advice), substrate: s,
		memory: shape.Memory, silent: make(chan struct{})}
	v.limit.Store(hardLimit(shape))
	v.disk.Store(diskLimit(shape))
	v.dir = filepath.Join(base, folders+string(v.ID()))
	// The lock is beside the folder and is created before it: a folder whose lock is free has no
	// owner.
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

// sweep removes the folders of sandboxes whose process was killed before it could remove them.
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

func (v *sandbox) Agent() io.ReadWriteCloser { return v.agent }
func (v *sandbox) Scratch() string           { return scratchName }

// stop ends the sandbox for the given reason.
func (v *sandbox) stop(cause error) {
	v.Blame(cause)
	_ = v.Kill()
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
	if err := v.control(ctx, verb, string(v.ID())); err != nil {
		return v.failed(turnstone.Op("gvisor."+verb), err)
	}
	v.paused = paused
	return nil
}

// failed returns the sandbox's own reason for its end if it has a reason, and err otherwise.
func (v *sandbox) failed(op turnstone.Op, err error) error {
	return v.substrate.wrap(op, v.Why(err))
}

// wait blocks until the agent is ready.
func (v *sandbox) wait(ctx context.Context, limit time.Duration) error {
	p := console.Patience{Idle: limit, Work: 2 * limit, Limit: limit} // only Limit matters
	return v.Wait(ctx, "gvisor.boot", p,
		func() (console.Load, error) { return console.Load{}, errors.ErrUnsupported })
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

// SetDeadline bounds reads and writes, including pending reads and writes: this is how a link ends.
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

// started is called when the agent has sent something: all files are open by then. It removes the
// name of the file with the sandbox's writes, which disappears with the sandbox.
func (v *sandbox) started() {
	if v.spoke.Swap(true) {
		return
	}
	names, _ := filepath.Glob(filepath.Join(v.dir, storePrefix+"*"))
	for _, name := range names {
		_ = os.Remove(name)
	}
}
