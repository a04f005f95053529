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

// Groups hands out one control group (version 2) for each process that is
// started, below one that bounds all of them together.
type Groups struct {
	dir  string // of the bounding group
	each string // pids.max of one group: half of all, so that what one leaves behind cannot keep the next from starting

	memoryMax atomic.Int64  // of all together; 0: none
	enforce   chan struct{} // told of each start; nil: the kernel keeps the limit

	mu    sync.Mutex
	next  int
	spare *cgroup              // made ahead, since making one costs time that a start would wait for
	full  []*cgroup            // ended, but with processes left in them
	live  map[*cgroup]struct{} // that may hold processes
	hold  holder               // where the kernel cannot freeze
}

// A cgroup holds one process and all that it starts.
type cgroup struct {
	owner *Groups
	dir   string
	fd    int // of dir, for clone3's CLONE_INTO_CGROUP
	kills int // of memory.events, when it was read last: a group is used again

	killed atomic.Int32 // that EnforceMemory has killed, and nobody has asked for
}

// NewGroups makes the bounding group below root, the mount point of cgroup2.
func NewGroups(root string, memoryMax, pidsMax int64) (*Groups, error) {
	g := &Groups{dir: filepath.Join(root, "turn"), live: make(map[*cgroup]struct{})}
	if err := writeFile(filepath.Join(root, "cgroup.subtree_control"), "+memory +pids +cpu"); err != nil {
		return nil, err
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(g.dir, "cgroup.subtree_control"), "+memory +pids +cpu"); err != nil {
		return nil, err
	}
	if err := g.Limit(memoryMax, pidsMax); err != nil {
		return nil, err
	}
	g.prepare()
	return g, nil
}

// In makes the groups look at processes as s does, which is in none of them. It is called
// before the first process is started.
func (g *Groups) In(s *Space) { g.hold.proc = s.proc }

// Limit sets the bounds of all processes together; a zero leaves one as it is.
func (g *Groups) Limit(memoryMax, pidsMax int64) error {
	if memoryMax > 0 {
		if err := writeFile(filepath.Join(g.dir, "memory.max"), strconv.FormatInt(memoryMax, 10)); err != nil {
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
		default: // it will look
		}
	}
	return c, nil
}

// prepare makes a spare group, if there is none.
func (g *Groups) prepare() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spare == nil {
		g.spare, _ = g.make() // take tries again, and reports
	}
}

// make makes a group. g.mu is held.
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

// kill sends SIGKILL to every process of the group at once.
func (c *cgroup) kill() error { return writeFile(filepath.Join(c.dir, "cgroup.kill"), "1") }

// oomKills is how many processes of the group the kernel killed for want of memory
// since it was asked last.
func (c *cgroup) oomKills() int {
	if c.owner.enforce != nil {
		return int(c.killed.Swap(0))
	}
	var buf [512]byte
	n, err := readSmall(filepath.Join(c.dir, "memory.events"), buf[:])
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

// empty says that no process is left in the group.
func (c *cgroup) empty() bool {
	var buf [256]byte
	n, err := readSmall(filepath.Join(c.dir, "cgroup.events"), buf[:])
	return err == nil && strings.Contains(string(buf[:n]), "populated 0")
}

// release makes the group the spare one if nothing is left in it: making and
// removing groups costs more than the rest of a process's start and end. Else it
// is kept until what runs in it has ended.
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
		g.spare, _ = g.make() // take tries again, and reports
	}
}

// KillAll sends SIGKILL to every process that any group holds, and says whether
// there was none.
func (g *Groups) KillAll() bool {
	if (&cgroup{dir: g.dir}).empty() {
		return true
	}
	_ = writeFile(filepath.Join(g.dir, "cgroup.kill"), "1")
	return false
}

// Dir is the bounding group's folder.
func (g *Groups) Dir() string { return g.dir }

// writeFile writes to a file of the kernel's: one open, one write, no creation.
func writeFile(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// readSmall reads the start of a file of the kernel's.
func readSmall(path string, buf []byte) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Read(fd, buf)
}
