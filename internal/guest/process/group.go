package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Groups provides a control group (version 2) for each started process, below a group that bounds
// all of them together.
type Groups struct {
	dir string // folder of the bounding group
	// pids.max of a group: half of the total, so that the remains of a process cannot prevent the
	// next start
	each string

	memoryMax atomic.Int64  // limit for all groups together; 0: none
	enforce   chan struct{} // signaled on each start; nil: the kernel enforces the limit

	mu    sync.Mutex
	next  int
	spare *cgroup              // created in advance, so that a start need not wait
	full  []*cgroup            // ended, but with remaining processes
	live  map[*cgroup]struct{} // groups that may have processes
	hold  holder               // for kernels that cannot freeze
}

// A cgroup contains a process and its descendants.
type cgroup struct {
	owner *Groups
	dir   string
	fd    int // of dir, for clone3's CLONE_INTO_CGROUP
	kills int // last value from memory.events, because groups are reused

	killed atomic.Int32 // killed by EnforceMemory and not reported yet
}

// NewGroups creates the bounding group below root, the mount point of cgroup2.
func NewGroups(root string, memoryMax, pidsMax int64) (*Groups, error) {
	g := &Groups{dir: filepath.Join(root, "turn"), live: make(map[*cgroup]struct{})}
	err := writeFile(filepath.Join(root, "cgroup.subtree_control"), "+memory +pids +cpu")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	err = writeFile(filepath.Join(g.dir, "cgroup.subtree_control"), "+memory +pids +cpu")
	if err != nil {
		return nil, err
	}
	if err := g.Limit(memoryMax, pidsMax); err != nil {
		return nil, err
	}
	g.prepare()
	return g, nil
}

// In makes the groups look up processes from s's point of view, because the agent is in no
// namespace of s. Call it before the first process is started.
func (g *Groups) In(s *Space) { g.hold.proc = s.proc }

// Limit sets the limits of all processes together; zero leaves a limit unchanged.
func (g *Groups) Limit(memoryMax, pidsMax int64) error {
	if memoryMax > 0 {
		err := writeFile(filepath.Join(g.dir, "memory.max"), strconv.FormatInt(memoryMax, 10))
		if err != nil {
			return err
		}
		g.memoryMax.Store(memoryMax)
	}
	if pidsMax > 0 {
		g.each = strconv.FormatInt(max(1, pidsMax/2), 10)
		return writeFile(filepath.Join(g.dir, "pids.max"), strconv.FormatInt(pidsMax, 10))
	}
	return nil
}

// take returns an empty group. The caller releases it.
func (g *Groups) take() (*cgroup, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.spare
	g.spare = nil
	if c == nil {
		var err error
		if c, err = g.make(); err != nil {
			return nil, err
		}
	}
	g.live[c] = struct{}{}
	if g.enforce != nil {
		select {
		case g.enforce <- struct{}{}:
		default: // it will check anyway
		}
	}
	return c, nil
}

// prepare creates a spare group if there is none.
func (g *Groups) prepare() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spare == nil {
		g.spare, _ = g.make() // take tries again and reports the error
	}
}

// make creates a group. g.mu is held.
func (g *Groups) make() (*cgroup, error) {
	g.next++
	c := &cgroup{owner: g, dir: filepath.Join(g.dir, strconv.Itoa(g.next))}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	fd, err := unix.Open(c.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = os.Remove(c.dir)
		return nil, err
	}
	c.fd = fd
	if g.each != "" {
		err = writeFile(filepath.Join(c.dir, "pids.max"), g.each)
	}
	return c, err
}

// kill sends SIGKILL to all processes of the group atomically.
func (c *cgroup) kill() error { return writeFile(filepath.Join(c.dir, "cgroup.kill"), "1") }

// oomKills returns the number of processes of the group that the kernel has killed because of
// memory since the last call.
func (c *cgroup) oomKills() int {
	if c.owner.enforce != nil {
		return int(c.killed.Swap(0))
	}
	var buf [512]byte
	n, err := ReadSmall(filepath.Join(c.dir, "memory.events"), buf[:])
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(buf[:n]), "\n") {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.Atoi(v)
			before := c.kills
			c.kills = kills
			return kills - before
		}
	}
	return 0
}

// empty reports whether the group has no processes.
func (c *cgroup) empty() bool {
	var buf [256]byte
	n, err := ReadSmall(filepath.Join(c.dir, "cgroup.events"), buf[:])
	return err == nil && strings.Contains(string(buf[:n]), "populated 0")
}

// release makes an empty group the spare group: creating and removing groups costs more than the
// rest of a process's start and end. Other groups are kept until their processes have ended.
func (c *cgroup) release() {
	g := c.owner
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.full[:0]
	for _, c := range append(g.full, c) {
		switch {
		case !c.empty():
			left = append(left, c)
		case g.spare == nil:
			g.spare = c
			delete(g.live, c)
		default:
			delete(g.live, c)
			_ = unix.Close(c.fd)
			_ = unix.Rmdir(c.dir)
		}
	}
	g.full = left
	if g.spare == nil {
		g.spare, _ = g.make() // take tries again and reports the error
	}
}

// KillAll sends SIGKILL to every process in any group, and reports whether there was none.
func (g *Groups) KillAll() bool {
	if (&cgroup{dir: g.dir}).empty() {
		return true
	}
	_ = writeFile(filepath.Join(g.dir, "cgroup.kill"), "1")
	return false
}

// Dir returns the bounding group's folder.
func (g *Groups) Dir() string { return g.dir }

// writeFile writes to a kernel file: a single open and write, no creation.
func writeFile(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// ReadSmall reads the start of a kernel file.
func ReadSmall(path string, buf []byte) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return unix.Read(fd, buf)
}
