package agent

import (
	"context"
	"io"
	"math"
	"net"
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

// Configure implements Sandbox.configure: once, and before any other command.
func (s *sandbox) Configure(_ context.Context, _ *wire.Conn,
	p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
	a := s.a
	if a.opt.Configure == nil || !a.configuring.CompareAndSwap(false, true) {
		return nil, turnstone.Errorf(wire.MethodSandboxConfigure, turnstone.KindInvalid, "sandbox",
			"it is configured already, or is not a machine of its own")
	}
	res, err := a.opt.Configure(p)
	if err != nil {
		a.configuring.Store(false)
		return nil, err
	}
	a.files.Close() // it may hold the previous root
	a.shell.addEnv(p.Env)
	a.defaults.own(p.Owner)
	a.fresh.Store(res.Reseeded && !p.Deterministic)
	a.configured.Store(true)
	return res, nil
}

// GetVersion implements Sandbox.getVersion.
func (s *sandbox) GetVersion(context.Context, *wire.Conn) (*wire.SandboxGetVersionResult, error) {
	res := &wire.SandboxGetVersionResult{ProtocolVersion: wire.ProtocolVersion,
		Product: "turn-agent/" + turnstone.Version}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		res.Kernel = unix.ByteSliceToString(u.Release[:])
		res.Hostname = unix.ByteSliceToString(u.Nodename[:])
	}
	return res, nil
}

// GetStats implements Sandbox.getStats.
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
	if g := s.a.opt.Groups; g != nil {
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

const (
	cardMTU    = 1500
	maxCardMTU = 16 << 10
)

// A Card is a network card whose frames the agent carries to the host and back.
type Card interface {
	// Connect creates the card unless it exists, and carries its frames until one of the streams
	// ends or Connect is called again. It returns the interface's name.
	Connect(mac net.HardwareAddr, mtu int, n *wire.SandboxNetwork, in io.ReadCloser,
		out FrameSender) (name string, err error)
	// Suspend prepares for a snapshot. No process runs at that time.
	Suspend()
}

// Network implements Sandbox.network.
func (s *sandbox) Network(_ context.Context, c *wire.Conn,
	p *wire.SandboxNetworkParams) (*wire.SandboxNetworkResult, error) {
	const op = wire.MethodSandboxNetwork
	if s.a.opt.Card == nil {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox",
			"it is not a machine of its own")
	}
	mac, err := net.ParseMAC(p.MAC)
	switch {
	case err != nil || len(mac) != 6 || mac[0]&1 != 0:
		return nil, Invalid(op, p.MAC, "it is not the address of one network card")
	case p.MTU == 0:
		p.MTU = cardMTU
	case p.MTU < 576 || p.MTU > maxCardMTU:
		return nil, Invalid(op, "mtu", "between 576 and 16384 bytes are possible")
	}
	in, err := c.Receiver(p.In)
	if err != nil {
		return nil, err
	}
	out, err := c.Sender(p.Out)
	if err == nil {
		var name string
		if name, err = s.a.opt.Card.Connect(mac, int(p.MTU), &p.Network, in, out); err == nil {
			return &wire.SandboxNetworkResult{Interface: name}, nil
		}
		out.Abort(err)
	}
	_ = in.Close()
	return nil, err
}

// A FrameSender is the stream to the host.
type FrameSender interface {
	io.WriteCloser
	Abort(why error)
}
