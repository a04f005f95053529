package firecracker

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// A placed file is a file that a Firecracker finds in its folder.
type placed struct {
	name    string
	path    string // on the host; empty: the machine has no home disk
	copied  bool   // the machine gets its own copy, and writes to it
	written bool   // the machine writes to it
}

// A cell is the folder of a Firecracker:
//
//	scratch   the disk that stores the writes, until it is open
//	out/      where Firecracker writes a snapshot
//	NAME      plain: a link to the file of this name; also the sockets
//	jail/     jailed: a file system in memory that only this Firecracker sees
//
// A lock beside it is held as long as the cell's owner lives, so that other processes can recognize
// leftovers.
type cell struct {
	home *statedir.Dir
	dir  string
	lock *statedir.Lock
	// work is Firecracker's working folder with its sockets, as Firecracker sees it.
	work   *os.File
	outDir *os.File // the open folder out, whose name could be given to another folder
}

const cellsDir = "firecracker"

func newCell(ctx context.Context, h *statedir.Dir, id turnstone.SandboxID) (*cell, error) {
	base, err := h.MkdirAll(cellsDir)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(base, string(id))
	lock, err := statedir.Acquire(ctx, dir+".lock", nil)
	if err != nil {
		return nil, err
	}
	c := &cell{home: h, dir: dir, lock: lock}
	if err = os.Mkdir(dir, 0o700); err == nil {
		err = os.Mkdir(filepath.Join(dir, outName), 0o700)
	}
	if err == nil {
		c.outDir, err = os.Open(filepath.Join(dir, outName))
	}
	if err != nil {
		c.remove()
		return nil, err
	}
	return c, nil
}

// copies creates the copies that the machine writes to, and sets their paths. It returns the open
// scratch disk.
func (c *cell) copies(ctx context.Context, files []placed) (scratch *os.File, err error) {
	for i, f := range files {
		if !f.copied {
			continue
		}
		path := filepath.Join(c.dir, f.name)
		if scratch, err = copyFile(ctx, path, f.path, 0o600); err != nil {
			return nil, err
		}
		files[i] = placed{name: f.name, path: path, written: true}
	}
	return scratch, nil
}

// links puts files into the folder of a Firecracker without a jail. extra are the files that it
// inherits, from descriptor 3 on.
func (c *cell) links(files []placed) (extra []*os.File, err error) {
	for _, f := range files {
		target := f.path
		switch {
		case filepath.Join(c.dir, f.name) == f.path:
			continue
		case target == "":
			empty, err := emptyHome()
			if err != nil {
				return extra, err
			}
			target = fmt.Sprintf("/proc/self/fd/%d", 3+len(extra))
			extra = append(extra, empty)
		default:
			if target, err = filepath.Abs(target); err != nil {
				return extra, err
			}
		}
		if err := os.Symlink(target, filepath.Join(c.dir, f.name)); err != nil {
			return extra, err
		}
	}
	c.work, err = os.Open(c.dir)
	return extra, err
}

// forget removes a file of the cell that is already open.
func (c *cell) forget(name string) { _ = os.Remove(filepath.Join(c.dir, name)) }

// out opens a file that Firecracker has written.
func (c *cell) out(name string) string { return filepath.Join(c.dir, outName, name) }

// dial connects to a socket in Firecracker's folder, which may be in its jail.
func (c *cell) dial(ctx context.Context, socket string) (net.Conn, error) {
	return dialIn(ctx, c.work, socket)
}

// remove removes the cell. Its Firecracker must have ended.
func (c *cell) remove() {
	for _, f := range []*os.File{c.work, c.outDir} {
		if f != nil {
			_ = f.Close()
		}
	}
	budget := sweepBudget
	removeCell(c.home, c.dir, &budget)
	c.lock.Release()
}

// sweepBudget bounds the files that a sweep, or a machine's end, removes.
const sweepBudget = 2000

// removeCell removes a cell's folder and its lock file, whose lock the caller holds. An attacker
// who has taken over Firecracker may have filled the folder: files that take too long or cannot be
// removed are left to `turn gc`.
func removeCell(h *statedir.Dir, dir string, budget *int) {
	h.Discard(dir, budget)
	_ = os.Remove(dir + ".lock")
}

// sweepGroups removes leftover control groups of machines below parent. A group in use cannot be
// removed, and a young group may be about to be used.
func sweepGroups(parent string, now time.Time) {
	entries, _ := os.ReadDir(parent)
	for _, e := range entries {
		if st, err := e.Info(); err == nil && e.IsDir() && strings.HasPrefix(e.Name(), "sb-") &&
			now.Sub(st.ModTime()) > groupAge {
			_ = unix.Rmdir(filepath.Join(parent, e.Name()))
		}
	}
}

// groupAge is the age at which a group without a process counts as a leftover.
const groupAge = time.Minute

// sweepCells removes the cells whose owners were killed. Their Firecrackers ended with them.
func sweepCells(h *statedir.Dir) {
	base, budget := h.Path(cellsDir), sweepBudget
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		dir := filepath.Join(base, strings.TrimSuffix(e.Name(), ".lock"))
		lock, err := statedir.TryAcquire(dir + ".lock")
		if lock == nil || err != nil {
			continue // its owner runs
		}
		removeCell(h, dir, &budget)
		lock.Release()
	}
}
