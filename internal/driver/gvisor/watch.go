package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// gVisor's kernel does not limit the memory of its processes; the agent ends processes that exceed
// the sandbox's limit. The host's own limit is for a sandbox whose agent does not work: it is
// higher, and exceeding it ends the sandbox.
const (
	watchInterval = 250 * time.Millisecond
	slack         = 128 << 20 // memory of the kernel in user space itself, in bytes
)

// blindTime is how long a sandbox runs while its memory cannot be measured, for example if /proc
// hides other processes.
const blindTime = 10 * time.Second

// diskLimit returns how many bytes of the host's disk a sandbox's writes may use. Its own kernel
// enforces its disk's size; this limit is for a kernel that does not.
func diskLimit(shape turnstone.Shape) int64 {
	return int64(shape.Disk) + int64(shape.Disk)/8 +
		slack
}

// hardLimit returns how many bytes of the host's memory a sandbox may use.
func hardLimit(shape turnstone.Shape) int64 {
	return int64(shape.Memory) + int64(shape.Memory)/4 + slack
}

// watch ends the sandbox when it uses more memory than allowed. It returns when the sandbox ends.
func (v *sandbox) watch() {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	var m *meter
	defer func() { m.close() }()
	end := func(hint, format string, args ...any) {
		v.stop(turnstone.Errorf("gvisor.run", turnstone.KindExhausted, string(v.ID()),
			format, args...).WithHint(hint))
	}
	var blind time.Duration
	for {
		select {
		case <-v.Done():
			return
		case <-tick.C:
		}
		if m == nil {
			m = newMeter(filepath.Join(v.dir, pidFile))
			if blind += watchInterval; !v.spoke.Load() {
				blind = 0
			}
			if m == nil && blind >= blindTime {
				end("run `turn doctor`", "its use of the host's memory cannot be measured")
				return
			}
			continue
		}
		if n := m.bytes(); n > v.limit.Load() {
			end("give the sandbox more memory, or run less at once",
				"it used %s of the host's memory; it has %s", turnstone.Bytes(n).Human(), v.memory)
			return
		}
		if n := m.written(); n > v.disk.Load() {
			end("give the sandbox a larger disk, or write less", "it used %s of the host's disk",
				turnstone.Bytes(n).Human())
			return
		}
	}
}

// A meter measures a sandbox's process.
type meter struct {
	pid    int
	memory *os.File // the memory of the processes in the sandbox
	store  *os.File // their writes; nil: unknown
}

// newMeter returns nil if the process does not exist yet.
func newMeter(pidFile string) *meter {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return nil
	}
	m := &meter{}
	if m.pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil || m.pid <= 1 {
		return nil
	}
	dir := fmt.Sprintf("/proc/%d/fd", m.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		link, err := os.Readlink(path)
		switch {
		case err != nil:
		case m.memory == nil && strings.HasPrefix(link, "/memfd:runsc-memory"):
			m.memory, _ = os.Open(path) // nil with an error
		case m.store == nil && strings.HasPrefix(filepath.Base(link), storePrefix):
			m.store, _ = os.Open(path)
		}
	}
	if m.memory == nil {
		m.close()
		return nil
	}
	return m
}

// storePrefix begins the name of the file with a sandbox's writes.
const storePrefix = ".gvisor.filestore."

// written returns how many bytes of the disk the sandbox's files use.
func (m *meter) written() int64 {
	var st unix.Stat_t
	if m.store == nil || unix.Fstat(int(m.store.Fd()), &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// bytes returns the memory of the sandbox's processes and of their kernel; an unreadable value
// counts as 0, because the process has then ended.
func (m *meter) bytes() int64 {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.memory.Fd()), &st); err != nil {
		return 0
	}
	return st.Blocks*512 + anonymous(m.pid)
}

func (m *meter) close() {
	if m != nil {
		_, _ = m.memory.Close(), m.store.Close()
	}
}

// anonymous returns the anonymous memory of a process, in bytes (proc_pid_status(5)).
func anonymous(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	n, err := statusField(string(b), "RssAnon:")
	if err != nil {
		return 0
	}
	return n << 10
}

// statusField returns a field of /proc/PID/status that is a number of KiB.
func statusField(status, name string) (int64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		}
	}
	return 0, errors.New("no " + name)
}
