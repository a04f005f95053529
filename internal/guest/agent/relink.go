package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// freezeTime is how long processes may take to stand still. One that the kernel
// cannot stop, because it waits for a device, is the reason to give up.
const freezeTime = 10 * time.Second

// Suspend is Sandbox.suspend. From here on no process runs until renew: none ever
// sees that it is in a clone that still has the name of another.
func (s *sandbox) Suspend(ctx context.Context, _ *wire.Conn, p *wire.SandboxSuspendParams) (*wire.SandboxSuspendResult, error) {
	const op = wire.MethodSandboxSuspend
	a := s.a
	port := a.port.Load()
	if a.opt.renew == nil || port == nil {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox",
			"it is not a machine of its own")
	}
	if len(p.Marker) != wire.MarkerSize {
		return nil, invalid(op, "marker", "32 bytes are needed")
	}
	if a.frozen.Load() {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox",
			"its disks are frozen").WithHint("call State.thaw first")
	}
	if !a.suspended.CompareAndSwap(false, true) {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox",
			"it is being suspended")
	}
	ctx, cancel := context.WithTimeout(ctx, freezeTime)
	defer cancel()
	err := a.hold(ctx)
	if d := a.opt.disks; err == nil && p.Sync && d != nil {
		err = d.sync()
	}
	if c := a.opt.card; err == nil && c != nil {
		c.suspend()
	}
	if err == nil {
		err = port.Expect(p.Marker)
	}
	if err != nil {
		err = errors.Join(err, a.letGo())
		a.suspended.Store(false)
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, "sandbox", err).
			WithHint("a process cannot be stopped just now; try again")
	}
	res := new(wire.SandboxSuspendResult)
	if d := a.opt.disks; d != nil {
		res.Upper = d.upper
	}
	return res, nil
}

// hold makes all processes stand still.
func (a *Agent) hold(ctx context.Context) error {
	if a.opt.groups == nil {
		return nil // in a test
	}
	return a.opt.groups.Freeze(ctx)
}

func (a *Agent) letGo() error {
	if a.held.Swap(false) {
		a.files.writes.resume()
	}
	if a.opt.groups == nil {
		return nil
	}
	return a.opt.groups.Thaw()
}

// sync writes all of them out. With no process running nothing is written behind it.
func (d *disks) sync() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, fd := range d.fds {
		err = errors.Join(err, unix.Syncfs(fd))
	}
	return err
}

// Renew is Sandbox.renew.
func (s *sandbox) Renew(_ context.Context, _ *wire.Conn, p *wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
	const op = wire.MethodSandboxRenew
	a := s.a
	if a.opt.renew == nil {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox",
			"it is not a machine of its own")
	}
	a.renewing.Lock()
	defer a.renewing.Unlock()
	res, err := a.opt.renew(p)
	if err != nil {
		return nil, err
	}
	if a.suspended.Load() || a.held.Load() {
		if err := a.letGo(); err != nil {
			return nil, failed("the processes", err)
		}
		a.suspended.Store(false)
	}
	return res, nil
}

// renew is Sandbox.renew for the machine. The order matters as it does in configure.
func (m *machine) renew(p *wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
	res := new(wire.SandboxRenewResult)
	const op = wire.MethodSandboxRenew
	own := p.Hostname != "" || p.MachineID != ""
	check := wire.SandboxConfigureParams{Entropy: p.Entropy, Time: p.Time, Hostname: p.Hostname, MachineID: p.MachineID}
	if !own {
		if p.Network != nil {
			return res, invalid(op, "network", "it comes with a hostname and a machineId")
		}
		check.Hostname, check.MachineID = "same", "00000000000000000000000000000000"
	}
	check.Scratch = "same"
	now, err := checkConfigure(&check)
	if err != nil {
		return res, err
	}
	if res.Reseeded, err = m.refresh(p.Entropy, now); err != nil {
		return res, err
	}
	if own {
		if err := m.rename(p); err != nil {
			return res, err
		}
		_, err = newBootID()
	}
	if err == nil {
		res.BootID, err = bootID()
	}
	if err != nil {
		return res, failed("the boot id", err)
	}
	return res, nil
}

// rename gives a clone an identity of its own. Unlike configure it leaves alone what
// the sandbox's user may have added to the files meanwhile.
func (m *machine) rename(p *wire.SandboxRenewParams) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return failed("the host name", err)
	}
	before := unix.ByteSliceToString(u.Nodename[:])
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return failed("the host name", err)
	}
	files := [][2]string{{"/etc/hostname", p.Hostname + "\n"}, {"/etc/machine-id", p.MachineID + "\n"}}
	if b, err := readBounded("/etc/hosts", maxHosts); err == nil {
		if text := renameIn(string(b), before, p.Hostname); text != string(b) {
			files = append(files, [2]string{"/etc/hosts", text})
		}
	}
	if p.Network != nil && m.network != nil && !sameNetwork(p.Network, m.network) {
		if err := networkUp(p.Network); err != nil {
			return err
		}
		m.network = p.Network
		files = append(files, [2]string{"/etc/resolv.conf", resolvConf(p.Network)})
	}
	for _, f := range files {
		err := overwrite(f[0], f[1])
		if errors.Is(err, unix.ELOOP) { // its user made it a link: to write there is not our business
			if err = os.Remove(f[0]); err == nil {
				err = overwrite(f[0], f[1])
			}
		}
		if err != nil {
			return failed("the root file system", err)
		}
	}
	return nil
}

// maxHosts bounds the /etc/hosts in which a clone's name is replaced, in bytes.
const maxHosts = 1 << 20

// renameIn replaces the host's own name in an /etc/hosts: where configure wrote it.
func renameIn(hosts, before, after string) string {
	const own = "127.0.1.1\t"
	lines := strings.SplitAfter(hosts, "\n")
	for i, line := range lines {
		if strings.TrimSuffix(line, "\n") == own+before {
			lines[i] = own + after + strings.TrimPrefix(line, own+before)
		}
	}
	return strings.Join(lines, "")
}

func readBounded(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = errors.New("too long")
	}
	return b, err
}

// bootID returns the boot ID that newBootID has written.
func bootID() (string, error) {
	var buf [64]byte
	n, err := readSmall(bootIDFile, buf[:])
	return strings.TrimSpace(string(buf[:n])), err
}
