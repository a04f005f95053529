package agent

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A sandbox answers the domain Sandbox.
type sandbox struct{ a *Agent }

// Configure is Sandbox.configure: once, and before anything else.
func (s *sandbox) Configure(_ context.Context, _ *wire.Conn, p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
	a := s.a
	if a.opt.configure == nil || !a.configuring.CompareAndSwap(false, true) {
		return nil, turnstone.Errorf(wire.MethodSandboxConfigure, turnstone.KindInvalid, "sandbox",
			"it is configured already, or is not a machine of its own")
	}
	res, err := a.opt.configure(p)
	if err != nil {
		a.configuring.Store(false)
		return nil, err
	}
	a.files.close() // it may hold the root that was there before
	a.shell.addEnv(p.Env)
	a.configured.Store(true)
	return res, nil
}

// GetVersion is Sandbox.getVersion.
func (s *sandbox) GetVersion(context.Context, *wire.Conn) (*wire.SandboxGetVersionResult, error) {
	res := &wire.SandboxGetVersionResult{ProtocolVersion: wire.ProtocolVersion, Product: "turn-agent/" + turnstone.Version}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		res.Kernel = unix.ByteSliceToString(u.Release[:])
		res.Hostname = unix.ByteSliceToString(u.Nodename[:])
	}
	return res, nil
}

// GetStats is Sandbox.getStats.
func (s *sandbox) GetStats(context.Context, *wire.Conn) (*wire.SandboxGetStatsResult, error) {
	res := new(wire.SandboxGetStatsResult)
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err == nil {
		res.MemoryTotal = int64(si.Totalram) * int64(si.Unit)
		res.MemoryAvailable = int64(si.Freeram) * int64(si.Unit)
		res.Processes = int64(si.Procs)
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		res.MemoryAvailable = meminfo(string(b), "MemAvailable:", res.MemoryAvailable)
	}
	if g := s.a.opt.groups; g != nil {
		if b, err := os.ReadFile(filepath.Join(g.Dir(), "pids.current")); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				res.Processes = n
			}
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.a.path("/"), &fs); err == nil {
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
