package agent

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	wire "turnstone.dev/turnstone/oldwire"
)

// stats is Sandbox.stats.
func (a *Agent) stats() (any, error) {
	var res wire.StatsResult
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err == nil {
		res.MemoryTotal = int64(si.Totalram) * int64(si.Unit)
		res.MemoryAvailable = int64(si.Freeram) * int64(si.Unit)
		res.Processes = int(si.Procs)
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		res.MemoryAvailable = meminfo(string(b), "MemAvailable:", res.MemoryAvailable)
	}
	if g := a.opt.groups; g != nil {
		var buf [32]byte
		if n, err := readSmall(filepath.Join(g.dir, "pids.current"), buf[:]); err == nil {
			res.Processes, _ = strconv.Atoi(strings.TrimSpace(string(buf[:n])))
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(a.path("/"), &fs); err == nil {
		res.DiskTotal = int64(fs.Blocks) * fs.Bsize
		res.DiskFree = int64(fs.Bavail) * fs.Bsize
	}
	return res, nil
}

// meminfo returns one value of /proc/meminfo in bytes, or other.
func meminfo(text, key string, other int64) int64 {
	for line := range strings.SplitSeq(text, "\n") {
		if v, ok := strings.CutPrefix(line, key); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			if err == nil && kib >= 0 && kib < math.MaxInt64>>10 {
				return kib << 10
			}
		}
	}
	return other
}

// diskFull says whether the file system at path has less than 1 MiB, or 1%, left.
func diskFull(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Blocks == 0 {
		return false
	}
	free := fs.Bavail * uint64(fs.Bsize)
	return free < 1<<20 || fs.Bavail < fs.Blocks/100 || fs.Ffree == 0 && fs.Files > 0
}
